"""Sessions whose texts grow in a forward pass, by chunks and by trees, and their expected logits:
those of a plain pass over the same text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward import attention
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tests.families import VOCABULARY

SIZE = 384
PLACES = (31, 63, 64, 94, 95, 96, 126, 128, 159, 200, 216)  # mostly around cuts and block borders
LENGTH = 220


def some_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))


def some_tree(rng: random.Random, nodes: int) -> tuple[int, ...]:
    """Return a tree whose parents are anywhere, or mostly the last node: flat trees and deep
    ones.
    """
    deep = rng.random() < 0.5
    return tuple(
        node - 1 if deep and rng.random() < 0.9 else rng.randrange(-1, node)
        for node in range(nodes)
    )


@torch.inference_mode()
def plain_pass(model: HFModel, text: list[int]) -> torch.Tensor:
    """Return the logits of a text as transformers computes them, float32 [tokens, vocab]."""
    model.network.set_attn_implementation("eager")
    ids = torch.tensor([text], device=model.device)
    logits: torch.Tensor = model.network(input_ids=ids, use_cache=False).logits[0].float()
    model.network.set_attn_implementation(attention.NAME)
    return logits


@dataclass
class Talk:
    """A text and the page table that holds it."""

    table: PageTable
    text: list[int] = field(default_factory=list)

    def segment(
        self, head: Sequence[int], draft: Sequence[int] = (), parents: Sequence[int] = ()
    ) -> Segment:
        """Return a segment of more text, with a draft after it."""
        hung = tree.hang(len(head), parents)
        return Segment(self.table, len(self.text), (*head, *draft), hung, len(hung))

    def among_proposals(
        self, chunk: Sequence[int], rng: random.Random
    ) -> tuple[Segment, list[int]]:
        """Return more text in a tree with wrong proposals anywhere, and the path of the text."""
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for token in chunk:
            for _ in range(rng.choice([0, 0, 0, 1, 3])):
                parents.append(rng.randrange(-1, len(tokens)))
                tokens += some_tokens(rng, 1)
            parents.append(path[-1] if path else -1)
            path.append(len(tokens))
            tokens.append(token)
        for _ in range(rng.choice([0, 0, 5, 20])):
            parents.append(rng.randrange(-1, len(tokens)))
            tokens += some_tokens(rng, 1)
        return self.segment((), tokens, parents), path

    def difference(self, model: HFModel, fed: Segment, logits: torch.Tensor) -> float:
        """Return the largest difference between the logits of a segment and plain passes over all
        its paths.
        """
        worst = 0.0
        for leaf in set(range(len(fed.parents))) - set(fed.parents):
            path = tree.path(fed.parents, leaf)
            own = plain_pass(model, self.text + [fed.tokens[node] for node in path])[-len(path) :]
            worst = max(worst, (own - logits[path]).abs().max().item())
        return worst

    @torch.inference_mode()
    def commit(self, forward: HFRunner, fed: Segment, node: int) -> None:
        """Commit the path to a node as text."""
        path = tree.path(fed.parents, node)
        forward.pool.compact(self.table, len(self.text), path)
        self.text += [fed.tokens[node] for node in path]

    def say(self, forward: HFRunner, tokens: Sequence[int]) -> torch.Tensor:
        """Feed text; return its logits, [tokens, vocab]."""
        fed = self.segment(tokens)
        (logits,) = forward([fed])
        self.commit(forward, fed, len(tokens) - 1)
        return logits


def talks(forward: HFRunner, count: int, size: int = SIZE) -> list[Talk]:
    """Return sessions without a text yet; all must fit the pool."""
    tables = [forward.pool.allocate(size) for _ in range(count)]
    assert None not in tables
    return [Talk(table) for table in tables if table]


def largest_difference(forward: HFRunner, rng: random.Random) -> float:
    """Return the largest difference from plain passes: chains and trees of four sessions together,
    up to and across the cuts, with any path committed.
    """
    worst, together = 0.0, talks(forward, 4)
    for place in PLACES:
        fed = []
        for number, talk in enumerate(together):
            head = some_tokens(rng, max(place + number - len(talk.text), 1))
            parents = some_tree(rng, rng.choice([0, 1, 5, 16, 30]))
            fed.append(talk.segment(head, some_tokens(rng, len(parents)), parents))
        for talk, segment, rows in zip(together, fed, forward(fed), strict=True):
            worst = max(worst, talk.difference(forward.model, segment, rows))
            talk.commit(forward, segment, rng.randrange(len(segment.tokens)))
    return worst


@torch.inference_mode()
def differing_rows(
    forward: HFRunner, rng: random.Random, length: int = LENGTH, others: int = 2
) -> list[int]:
    """Return the positions of a text whose logits differ, in any bit, between one token at a time
    alone, and chunks and trees of any size beside others.
    """
    text = some_tokens(rng, length)
    alone, beside, *company = talks(forward, 2 + others, length + SIZE - LENGTH)
    expected = torch.cat([alone.say(forward, (token,)) for token in text])
    differing = []
    while (start := len(beside.text)) < length:
        own, path = beside.among_proposals(text[start:][: rng.choice([1, 2, 3, 9, 40, 70])], rng)
        fed = [(beside, own, path[-1])]
        for other in rng.sample(company, rng.randint(0, others)):
            nodes = rng.choice([0, 0, 3, 20])
            head = some_tokens(rng, rng.choice([1, 5, 33, 70]))
            segment = other.segment(head, some_tokens(rng, nodes), some_tree(rng, nodes))
            fed.append((other, segment, len(head) - 1))
        rng.shuffle(fed)
        for (talk, segment, node), rows in zip(
            fed, forward([segment for _, segment, _ in fed]), strict=True
        ):
            if talk is beside:
                same = (rows[path] == expected[start:][: len(path)]).all(-1)
                differing += [start + place for place in (~same).nonzero().flatten().tolist()]
            if talk is beside or len(talk.text) < 60:
                talk.commit(forward, segment, node)
    return differing
