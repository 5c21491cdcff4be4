"""Models by their names on the Hugging Face hub: what is downloaded, and the message if that
fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos import hub
from tandem.protos.errors import Unusable

NAME = "stories/target"
COMMIT = "0123456789abcdef" * 2 + "01234567"
ELSE = {"pytorch_model.bin": b"pickled", "onnx/model.safetensors": b"again", "README.md": b"# x"}
RESOLVE = """
import json, sys; from pathlib import Path; from tandem.protos import hub
found = []
for name, files in json.loads(sys.argv[1]):
    try:
        folder = hub.local(Path(name), getattr(hub, files))
        files = (str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        found.append([hub.name_of(folder), *sorted(files)])
    except hub.Unusable as problem:
        found.append(str(problem))
print(json.dumps(found))
"""


class Hub(BaseHTTPRequestHandler):
    """A fake hub that answers the library's requests about one repository: its file list, and each
    file.
    """

    files = {file.name: file.read_bytes() for file in models.TARGET.iterdir()} | ELSE

    def do_GET(self) -> None:
        """The HTTP server calls this method."""
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{NAME}/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            listing = {"id": NAME, "sha": COMMIT, "siblings": siblings, "private": False}
            self.answer(200, json.dumps(listing).encode(), "application/json")
        elif path == f"/api/models/{NAME}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": name}
                for name, content in self.files.items()
            ]
            self.answer(200, json.dumps(tree).encode(), "application/json")
        elif (name := path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")) in self.files:
            self.answer(200, self.files[name], "application/octet-stream")
        else:
            self.answer(404, b"", "text/plain")

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes, kind: str) -> None:
        """Send headers and, for a GET, the content."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """Serve a hub while the scope lasts; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def resolve(folder: Path, endpoint: str, *asked: tuple[str, str], offline: str = "0") -> list[Any]:
    """Resolve names in a process of its own, one after the other; return the path and its files, or
    the error of each. The fake hub's content is a folder.
    """
    environment = {"HF_HOME": str(folder), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": offline}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(asked)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_name_on_the_hub_is_downloaded_once_and_no_more_than_is_needed(tmp_path: Path) -> None:
    nobody = ("nobody/nothing", "MODEL_FILES")
    with serving() as endpoint:
        tokenizer, model, problem = resolve(
            tmp_path, endpoint, (NAME, "TOKENIZER_FILES"), (NAME, "MODEL_FILES"), nobody
        )
    assert "tokenizer.json" in tokenizer and "model.safetensors" not in tokenizer
    assert model == [NAME, *sorted(file.name for file in models.TARGET.iterdir())]
    again, still = resolve(tmp_path, endpoint, (NAME, "MODEL_FILES"), nobody, offline="1")
    assert again == model
    for line in (problem, still):
        assert "nobody/nothing is not on this machine and could not be downloaded" in line
        assert line.endswith("by hand: hf download nobody/nothing --local-dir nothing")


def test_without_the_library_the_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Unusable, match=r"hf download Qwen/Qwen3-0\.6B --local-dir Qwen"):
        hub.served(Path("Qwen/Qwen3-0.6B"))


def test_what_is_here_or_is_a_path_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "models").mkdir()
    for path in ("models/misspelt", "model", "a/b/c", "/a/b", "../a"):
        assert hub.local(Path(path), hub.MODEL_FILES) == Path(path)
    assert hub.name_of(Path("models/x")) == "x"


def test_settings_take_names_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def snapshot_download(name: str, allow_patterns: list[str], **_: object) -> str:
        asked.append((name, tuple(allow_patterns)))
        return str(models.TARGET)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert ModelServiceConfig(model=Path(NAME), speaks=Path(NAME)).model == models.TARGET
    front = OrchestratorConfig(verifier="v:1", drafter="d:1", tokenizer=Path(NAME))
    assert front.tokenizer == models.TARGET
    assert asked == [
        (NAME, hub.MODEL_FILES),
        (NAME, hub.TOKENIZER_FILES),
        (NAME, hub.TOKENIZER_FILES),
    ]
