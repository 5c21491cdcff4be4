"""Read prompts from a JSONL file such as Spec-Bench's, or use Tandem's own story prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tandem.benchmarks.peers.prompts import story_prompts
from tandem.protos.errors import Unusable


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of a prompt, and its category."""

    text: str
    category: str = ""


def read(file: Path | None, count: int) -> list[Prompt]:
    """Return the first `count` prompts of a file, or of the story prompts if no file is given. If
    there are fewer than `count` prompts, they are repeated. Raises Unusable.
    """
    found = _lines(file) if file else [Prompt(text) for text in story_prompts()]
    if not found:
        raise Unusable(f"{file} has no prompts")
    return list(islice(cycle(found), count))


def _lines(file: Path) -> list[Prompt]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from error
    return [_prompt(file, at, line) for at, line in enumerate(lines, 1) if line.strip()]


def _prompt(file: Path, at: int, line: str) -> Prompt:
    """Parse a JSON line that has a `prompt`, a `question` or a list of `turns`. Only the first turn
    is used. The line may also have a `category`.
    """
    try:
        entry: dict[str, Any] = json.loads(line)
        named = [entry[name] for name in ("prompt", "question") if name in entry]
        text = named[0] if named else entry["turns"][0]
        if not isinstance(text, str):
            raise TypeError
        return Prompt(text, str(entry.get("category", "")))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"{file}, line {at} is no JSON object with a prompt, a question or turns"
        raise Unusable(problem) from error
