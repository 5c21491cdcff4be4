"""The prompts of all benchmarks: the first words of short stories that the embedded pair was not
trained on. Some benchmarks also use program code and random tokens as prompts.

This module reads the stories from the file beside it, and tokenises them as the orchestrator does.
The module does not load models.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tandem.orchestrator.requests.text import load_tokenizer

FILE = Path(__file__).with_name("story_prompts.jsonl")
KINDS = "story", "code", "random"
CODE = """def add(a, b):
    return a + b

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

for i in range(10):
    if i % 2 == 0:
        print(i)
"""


def story_prompts() -> list[str]:
    """Return all story prompts."""
    return [
        str(json.loads(line)["prompt"]) for line in FILE.read_text(encoding="utf-8").splitlines()
    ]


def story_count() -> int:
    """Return how many story prompts there are."""
    return len(story_prompts())


def tokenised(target: Path, count: int) -> list[tuple[int, ...]]:
    """Return the first `count` prompts as token ids of a model directory's tokenizer. Raises
    Unusable.
    """
    tokenizer = load_tokenizer(target)
    return [tuple(tokenizer.encode(prompt).ids) for prompt in story_prompts()[:count]]


def kinds(target: Path) -> dict[str, list[tuple[int, ...]]]:
    """Return prompts by kind: stories, code and noise. Raises Unusable."""
    tokenizer, rng = load_tokenizer(target), random.Random(0)
    code, size = tuple(tokenizer.encode(CODE).ids), tokenizer.get_vocab_size()
    story = tokenised(target, story_count())
    listing = [code[: 20 + 2 * place] for place in range(20)]
    noise = [tuple(rng.randrange(2, size) for _ in range(24)) for _ in range(20)]
    return dict(zip(KINDS, (story, listing, noise), strict=True))
