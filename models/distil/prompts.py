"""The prompts for the target: read from a user's file, or generated from question templates."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tandem.protos.errors import Unusable

Prompt: TypeAlias = str | list[dict[str, Any]]  # a text, or the messages of a chat

HERE = Path(__file__).parent
NUMBERS = {"few": (2, 9), "several": (5, 30), "many": (40, 400)}


def read(file: Path) -> list[Prompt]:
    """Read the prompts of a file. Each line is a text or, in a JSONL file, an object with a
    `prompt` or with `messages`. Raises Unusable.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise Unusable(f"{file} cannot be read: {error}") from error
    if not lines:
        raise Unusable(f"{file} has no prompts")
    if file.suffix != ".jsonl":
        return [[{"role": "user", "content": line}] for line in lines]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            found.append(entry["messages"] if "messages" in entry else str(entry["prompt"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{file}, line {number} has neither prompt nor messages") from error
    return found


def generated(seed: int) -> Iterator[Prompt]:
    """Yield an endless series of general questions, each as a chat. Questions rarely repeat."""
    templates, topics = (_lines(f"{name}.txt") for name in ("templates", "topics"))
    chosen = random.Random(seed)
    while True:
        topic, other = chosen.sample(topics, 2)
        numbers = {name: chosen.randint(*limits) for name, limits in NUMBERS.items()}
        text = chosen.choice(templates).format(topic=topic, other=other, **numbers)
        yield [{"role": "user", "content": text}]


def _lines(name: str) -> list[str]:
    return (HERE / name).read_text(encoding="utf-8").splitlines()
