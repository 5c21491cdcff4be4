"""A text that begins as another did is read only from where it differs, and gets the same answer as
alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.prefix_tree import PrefixNode, PrefixTree
from tandem.engine.cache.sessions import Sessions
from tandem.engine.exact.exactness import self_test
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.models import TARGET
from tandem.protos.streams import Decoding
from tandem.protos.types import Context, SamplingParams
from tests.families import CONFIGS, VOCABULARY
from tests.laws.verifying import Mailbox, decoding

CLIENTS, PROMPT, QUESTION, ANSWER, TURNS = 8, 2000, 20, 12, 6
GREEDY = SamplingParams(temperature=0.0)
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny random model with a long context."""
    torch.manual_seed(3)
    config = CONFIGS["llama"]()
    config.max_position_embeddings = 4096
    network = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    made = tmp_path_factory.mktemp("long-")
    network.save_pretrained(made)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_bytes((TARGET / name).read_bytes())
    return made


class Service:
    """A verifier's sessions, stepped by hand, with counts of what was read and copied."""

    def __init__(self, folder: Path, pages: int = 128) -> None:
        self.forward = HFRunner(load(folder, "float32"), pages * PAGE)
        self.sessions = Sessions(
            self.forward.pool, 4096, CLIENTS, count(1).__next__, 60.0, lambda: 0.0
        )
        self.read = 0  # tokens
        self.copied: list[int] = []  # positions per copy
        copy, pool = self.forward.pool.copy, self.forward.pool

        def counted(source: Any, target: Any, start: int, stop: int) -> None:
            self.copied.append(stop - start)
            copy(source, target, start, stop)

        pool.copy = counted  # type: ignore[method-assign]

    @contextmanager
    def opened(self, name: bytes, text: Tokens, scope: bytes = b"") -> Iterator[Any]:
        """Begin a generation; its tokens come on its stream."""
        opening = Decoding(Context(name, 1, 0, text, client=scope), GREEDY, len(text) + ANSWER)
        job, stream = decoding(self.sessions, opening, Mailbox()), Mailbox()
        job.stream = stream
        with torch.inference_mode():
            running = job.run()
            next(running)
            yield job, running, stream
            running.close()
            self.sessions.close(name)

    @torch.inference_mode()
    def step(self, opened: Any) -> bool:
        """Run one pass for a generation; return whether it goes on."""
        job, running, _ = opened
        segment = job.ready()
        self.read += len(segment.tokens)
        try:
            running.send(self.forward([segment])[0])
        except StopIteration:
            return False
        return True

    def answer(self, name: bytes, text: Tokens, scope: bytes = b"") -> Tokens:
        """Return an answer that is generated alone."""
        with self.opened(name, text, scope) as opened:
            while self.step(opened):
                pass
            return said(opened)


def said(opened: Any) -> Tokens:
    """Return the tokens of a generation."""
    return tuple(token for commit in opened[2].said for token in commit.tokens)


def some(rng: random.Random, length: int) -> Tokens:
    """Random tokens."""
    return tuple(rng.randrange(2, VOCABULARY) for _ in range(length))


def test_anonymous_clients_that_share_a_prompt_read_it_once(folder: Path) -> None:
    """The first client is still at work; only a part of the last page is copied."""
    rng, service, alone = random.Random(0), Service(folder), Service(folder)
    assert str(self_test(service.forward, "llama")) == "exact"
    prompt = some(rng, PROMPT)
    asked = [(*prompt, *some(rng, QUESTION)) for _ in range(CLIENTS)]
    first = service.opened(b"0", asked[0])
    with first as begun:
        service.step(begun)
        assert service.read == PROMPT + QUESTION
        whole = PROMPT // PAGE * PAGE
        for number, text in enumerate(asked[1:], start=1):
            before, name = service.read, bytes([number])
            assert service.answer(name, text) == alone.answer(name, text, name)
            # the previous text has left these positions
            rest = PROMPT - whole if number == 1 else 0
            assert service.read - before == rest + QUESTION + ANSWER - 1
        while service.step(begun):
            pass
        assert said(begun) == alone.answer(b"a", asked[0], b"0")
    assert all(positions < PAGE for positions in service.copied)


def test_a_chat_reads_only_what_is_new(folder: Path) -> None:
    """Each of six turns repeats all earlier ones; a finished answer is cached, too."""
    rng, service, alone = random.Random(1), Service(folder), Service(folder)
    text: Tokens = ()
    for turn in range(TURNS):
        new, before = some(rng, QUESTION + 7 * turn), service.read
        text = (*text, *new)
        answer = service.answer(bytes([turn]), text)
        newest = turn > 0  # the last token of an answer was never fed
        assert service.read - before == len(new) + newest + ANSWER - 1
        assert answer == alone.answer(b"a", text, bytes([turn]))
        text = (*text, *answer)
    assert all(positions < PAGE for positions in service.copied)


def conversation(folder: Path) -> list[tuple[Tokens, Tokens]]:
    """Return the answers to texts that evict each other's pages, and to the same texts without a
    cache.
    """
    rng, service, alone = random.Random(2), Service(folder, 20), Service(folder)
    texts = [some(rng, 5 * PAGE + 50) for _ in range(4)]
    said = []
    for turn, which in enumerate((0, 1, 2, 3, 2, 1, 3, 0)):
        text, name = texts[which], bytes([turn])
        said.append((service.answer(name, text), alone.answer(name, text, name)))
    return said


def test_after_evictions_texts_are_those_of_an_empty_cache(folder: Path) -> None:
    assert all(cached == uncached for cached, uncached in conversation(folder))


def test_a_stale_page_after_an_eviction_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake frees another page than that of the text which the tree forgets."""
    drop = PrefixTree._drop

    def mistaken(self: PrefixTree, node: PrefixNode) -> None:
        leaves = [each for *_, each in self._leaves if self._is_leaf((each.used, 0, each))]
        if others := [each for each in leaves if each is not node]:
            latest = max(others, key=lambda each: each.used)
            node.page, latest.page = latest.page, node.page
        drop(self, node)

    monkeypatch.setattr(PrefixTree, "_drop", mistaken)
    assert any(cached != uncached for cached, uncached in conversation(folder))
