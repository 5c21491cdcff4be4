"""The documentation site builds without warnings, and a dead link is a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from tandem.v1 import orchestrator_pb2 as api
from tests.documents import ROOT

MESSAGES: list[Descriptor] = [*api.DESCRIPTOR.message_types_by_name.values()]
HEAVY = shutil.ignore_patterns(".*", "build", "smollm2", "*.so", "*.safetensors", "__pycache__")
DEAD = "nowhere.md", "../nowhere.py", "usage.md#nowhere"


class Words(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def handle_data(self, data: str) -> None:
        self.text += data


def built(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.long("builds the whole site")
def test_the_site_is_built_without_a_warning_and_has_every_document_and_field(
    tmp_path: Path,
) -> None:
    done = built(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert not re.search("^WARNING", done.stderr, re.MULTILINE)
    names = [page.stem for page in (ROOT / "docs").glob("*.md")]
    for name in (*names, "architecture", "contributing", "results", "engine", "models", "examples"):
        assert (tmp_path / "site" / name / "index.html").is_file(), name
    words = Words()
    words.feed((tmp_path / "site/reference/grpc/index.html").read_text(encoding="utf-8"))
    for field in (field.name for message in MESSAGES for field in message.fields):
        assert field in words.text, field
    python = (tmp_path / "site/reference/python/index.html").read_text(encoding="utf-8")
    for name in ("AsyncClient.stream", "Client.generate", "errors.Busy"):
        assert f'{name}"' in python, name


@pytest.mark.long("builds the whole site")
def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    """The dead links point within `docs/`, to the rest of the repository, and to a heading."""
    shutil.copytree(ROOT, folder := tmp_path / "checkout", ignore=HEAVY, symlinks=True)
    with (folder / "docs" / "watching.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[dead]({link})\n" for link in DEAD)
    done = built(folder, tmp_path / "site")
    assert done.returncode != 0
    assert [link for link in DEAD if f"'{link}'" not in done.stderr] == []
