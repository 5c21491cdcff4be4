"""Chat prompts whose answers repeat earlier text: questions that are asked again with small
changes, and requests to rename one variable of a program.

This module renders and tokenises prompts as the orchestrator does, and loads no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tandem.orchestrator.requests.chat import load_chat_template
from tandem.orchestrator.requests.request import ChatMessage, Conversation
from tandem.orchestrator.requests.text import load_tokenizer

Tokens = tuple[int, ...]
QUESTIONS = (
    "What is photosynthesis, and why does it matter?",
    "How does a bicycle stay upright?",
    "Write a short email that asks a colleague for a report by Friday.",
    "List five tips for learning a language.",
    "Why is the sky blue during the day and red in the evening?",
    "Explain what a database index is.",
    "Give me a simple recipe for tomato soup.",
    "What are the main causes of inflation?",
    "Describe the water cycle in a few sentences.",
    "How do vaccines protect people?",
    "Name three rivers in Europe and a city on each.",
    "What is the difference between a list and a tuple in Python?",
    "Write a product description for a water bottle that keeps drinks cold.",
    "How can I sleep better at night?",
    "Who was Marie Curie, and what did she discover?",
    "What should I pack for three days in the mountains?",
    "Explain compound interest to a child.",
    "How do I set up a small vegetable garden?",
    "What are the advantages and disadvantages of working from home?",
    "Summarise how the internet sends a message from one computer to another.",
)
CHANGED = ("Please tell me: {}", "{} Thank you!", "I have a question. {}", "{} Be clear.")
PROGRAMS = (
    (
        "total",
        "amount",
        """def mean(values):
    total = 0.0
    for value in values:
        total += value
    if not values:
        raise ValueError("no values")
    return total / len(values)


def variance(values):
    centre = mean(values)
    total = 0.0
    for value in values:
        total += (value - centre) ** 2
    return total / len(values)
""",
    ),
    (
        "items",
        "entries",
        """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("empty")
        return self.items.pop()

    def __len__(self):
        return len(self.items)
""",
    ),
    (
        "path",
        "filename",
        """import json


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def save(path, settings):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=2)


def merge(path, changes):
    settings = load(path)
    settings.update(changes)
    save(path, settings)
""",
    ),
    (
        "n",
        "number",
        """def is_prime(n):
    if n < 2:
        return False
    for divisor in range(2, int(n ** 0.5) + 1):
        if n % divisor == 0:
            return False
    return True


def primes(limit):
    return [n for n in range(limit) if is_prime(n)]
""",
    ),
)
EDIT = "Rename the variable `{}` to `{}` in this program, and answer with the whole program:\n\n{}"


def questions() -> tuple[list[str], list[str]]:
    """Return the questions, and the same questions in slightly changed wording."""
    changed = [CHANGED[place % len(CHANGED)].format(each) for place, each in enumerate(QUESTIONS)]
    return list(QUESTIONS), changed


def edits() -> list[str]:
    """Return prompts that each ask a model to repeat a program with one variable renamed."""
    return [EDIT.format(*each) for each in PROGRAMS]


def chats(target: Path, texts: Sequence[str]) -> list[Tokens]:
    """Render each text as a prompt in the chat format of the model directory `target`, and return
    its token ids. Raises Unusable. Raises InvalidRequest if the model has no chat template.
    """
    template, tokenizer = load_chat_template(target), load_tokenizer(target)
    asked = (template.render(Conversation((ChatMessage("user", text),))) for text in texts)
    return [tuple(tokenizer.encode(each, add_special_tokens=False).ids) for each in asked]
