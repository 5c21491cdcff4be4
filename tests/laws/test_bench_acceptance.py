"""The acceptance benchmark measures with exactly the prompts that it is asked to use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tandem.benchmarks import acceptance
from tandem.benchmarks.peers.prompts import story_count

app = typer.Typer()
app.command()(acceptance.main)


def test_a_file_may_have_more_prompts_than_there_are_stories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, measured = story_count() + 1, list[Any]()

    async def measure(target: Path, draft: Path, weights: str, asked: Any, tokens: int) -> Any:
        measured.extend(asked)
        return []

    monkeypatch.setattr(acceptance, "configure_logging", lambda level: None)
    monkeypatch.setattr(acceptance, "chats", lambda target, texts: list(texts))
    monkeypatch.setattr(acceptance, "measure_all", measure)
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"{each}"}) for each in range(count)))
    run = CliRunner().invoke(app, ["--file", str(file), "--prompts", str(count)])
    assert run.exit_code == 0, run.output
    assert measured == [str(each) for each in range(count)]


def test_more_stories_than_there_are_are_refused() -> None:
    run = CliRunner().invoke(app, ["--prompts", str(story_count() + 1)])
    assert run.exit_code == 2
    assert f"there are only {story_count()} stories" in " ".join(run.output.split())
