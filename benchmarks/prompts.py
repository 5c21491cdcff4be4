"""The prompts of all benchmarks: the first words of short stories that no model of the embedded
pair was trained on.

Reads the file beside it and tokenises as the orchestrator does; knows nothing of models.
"""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.text import load_tokenizer

FILE = Path(__file__).with_name("story_prompts.jsonl")


def story_prompts() -> list[str]:
    """All prompts."""
    return [
        str(json.loads(line)["prompt"]) for line in FILE.read_text(encoding="utf-8").splitlines()
    ]


def story_count() -> int:
    """How many there are."""
    return len(story_prompts())


def tokenised(target: Path, count: int) -> list[tuple[int, ...]]:
    """The first `count` prompts as token ids of a model directory; raises Unusable."""
    tokenizer = load_tokenizer(target)
    return [tuple(tokenizer.encode(prompt).ids) for prompt in story_prompts()[:count]]
