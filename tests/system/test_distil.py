"""A draft model is made for a target with the command that a user runs; the command is stopped and
resumed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tandem import models
from tests.running_up import TANDEM, serving
from tests.waiting import wait_until

PROMPTS = ("Once upon a time, there was a", "One day, a dog and a cat", "The old man had a big red")


@pytest.mark.long("trains a model")
def test_a_draft_model_is_made_in_two_goes_and_drafts(tmp_path: Path) -> None:
    asked, out = tmp_path / "prompts.txt", tmp_path / "draft"
    asked.write_text("".join(f"{each} {n}\n" for n in range(20) for each in PROMPTS))
    words = [*TANDEM, "distil", "--target", str(models.TARGET), "--out", str(out)]
    words += ["--prompts", str(asked), "--parameters", "600K", "--max-new-tokens", "64"]
    words += ["--tokens", "3000", "--minutes", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as first:
        wait_until(lambda: (out / "training" / "answers").is_dir() or first.poll() is not None)
        first.send_signal(signal.SIGINT)
        assert first.stdout is not None
        assert "run the same command again" in first.stdout.read()
    assert first.returncode == 130
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tandem up --target {models.TARGET} --draft {out}" in done.stdout
    card = (out / "README.md").read_text()
    assert re.search(r"\| tokens per step \| \d\.\d\d: chains of 4, temperature 0", card)
    other = subprocess.run([*words, "--seed", "1"], capture_output=True, text=True)
    assert other.returncode == 1
    assert "was begun with seed 0, not 1" in other.stderr
    served = [*TANDEM, "up", "--target", str(models.TARGET), "--draft", str(out), "--no-ray"]
    with serving([*served, "--port", "0", "--http-port", "0"]) as tandem:
        answer = tandem.run("generate", "--json", "--rule", "top1", PROMPTS[0])
        assert answer.returncode == 0, answer.stderr
        assert int(json.loads(answer.stdout)["speculation"]["numDraftTokens"]) > 0
