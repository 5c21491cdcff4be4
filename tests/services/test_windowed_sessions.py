"""A model with sliding windows gives the same text, bit for bit, whatever its windowed layers gave
up, and takes less memory with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.pool import LayerGeometry, footprint_of
from tandem.engine.cache.sessions import Sessions
from tandem.engine.cache.stack import Stack
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel, load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.models import TARGET
from tandem.protos import tree
from tandem.protos.types import Context
from tests.families import CONFIGS, VOCABULARY, WINDOW

CPU, PIECE, LONG, PAGES = torch.device("cpu"), 48, 900, 9
TREE = (-1, 0, 0, 2, 3, 1)  # parents of a draft below the newest token
FAMILIES = ["gemma3_text", "gpt_oss", "mistral_window"]
Tokens = tuple[int, ...]
Load = Callable[[str], HFModel]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that makes a tiny random model with a long context."""

    def made(family: str) -> HFModel:
        torch.manual_seed(3)
        config = CONFIGS[family]()
        config.max_position_embeddings, config.sliding_window = 2048, WINDOW
        folder = tmp_path_factory.mktemp("windows-")
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((TARGET / name).read_bytes())
        return load(folder, "float32")

    return made


class Service:
    """Sessions of a model, stepped by hand. A `pressed` service gives up all possible memory before
    every pass.
    """

    def __init__(self, model: HFModel, pages: int, backend: AttentionBackend, pressed: bool):
        footprint = footprint_of(model.layers, model.dtype, CPU, PIECE) if pressed else Footprint()
        assert footprint.windowed > 0 or not pressed
        self.forward = HFRunner(model, pages * PAGE, True, backend, footprint=footprint)
        self.pool, self.pressed = self.forward.pool, pressed
        self.sessions = Sessions(self.pool, 2048, 4, count(1).__next__, 1e9, lambda: 0.0)
        self.reused = 0

    def feed(self, segment: Segment) -> torch.Tensor:
        """Return the logits of one pass."""
        if self.pressed:
            self.pool.prefixes.evict(self.pool.idle)
        return self.forward([segment])[0]

    @torch.inference_mode()
    def say(
        self, name: bytes, text: Tokens, steps: int, scope: bytes = b""
    ) -> tuple[torch.Tensor, Tokens]:
        """Return the logits of all rows of steps with trees after a prompt that is read in chunks,
        and the resulting text.
        """
        rows, context = list[torch.Tensor](), Context(name, 1, 0, text, client=scope)
        with self.sessions.acquire(context, 0) as session:
            start = session.length
            self.reused += start
            tokens = text[start:]
            rest = Segment(session.table, start, tokens, tree.chain(len(tokens)), 1)
            while len(rest.tokens) > PIECE:
                self.feed(rest.first(PIECE))
                rest = rest.remainder(PIECE)
            rows.append(self.feed(rest))
            self.sessions.keep(session, context, ())
            for _ in range(steps):
                token, length = int(rows[-1][-1].argmax()), session.length
                nodes = (token, *((token * 7 + n) % VOCABULARY for n in range(len(TREE))))
                parents = (-1, *(parent + 1 for parent in TREE))
                self.sessions.reserve(session, length + len(nodes))
                rows.append(self.feed(Segment(session.table, length, nodes, parents, len(nodes))))
                path = (0, 1, 3, 4)
                self.sessions.advance(session, [nodes[node] for node in path], path)
            said = tuple(session.tokens)
        self.sessions.close(name)
        return torch.cat(rows), said


def some(seed: int, length: int) -> Tokens:
    """Random tokens."""
    rng = random.Random(seed)
    return tuple(rng.randrange(2, VOCABULARY) for _ in range(length))


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *((family, AttentionBackend.PATHS) for family in FAMILIES),
        ("gemma3_text", AttentionBackend.TILES),
    ],
)
def test_what_is_given_up_changes_no_bit(
    family: str, backend: AttentionBackend, make: Load
) -> None:
    """The prompts share a beginning, turns follow, and one text does not fit as a whole. With
    tiles, rounding depends on the number of rows, so no pages are shared there.
    """
    model = make(family)
    plain = Service(model, 128, backend, pressed=False)
    pressed = Service(model, PAGES, backend, pressed=True)
    assert LONG > PAGES * PAGE
    beginning, shares = some(1, 300), backend is AttentionBackend.PATHS
    texts = beginning + some(2, 40), beginning + some(3, 90), some(4, LONG)
    for number, text in enumerate(texts):
        name, scope = bytes([number]), b"" if shares else bytes([number])
        wanted, said = plain.say(name, text, 24, scope)
        given, _ = pressed.say(name, text, 24, scope)
        assert torch.equal(given, wanted)
        if shares:
            wanted, _ = plain.say(b"next" + name, said + text[:7], 2)
            given, _ = pressed.say(b"next" + name, said + text[:7], 2)
            assert torch.equal(given[-14:], wanted[-14:])
    assert not shares or pressed.reused < plain.reused, "what was given up is read again"


def test_memory_that_is_given_up_is_the_systems_again() -> None:
    """Memory that was given up reads as zeros, and the memory beside it stays."""
    pages, shape = 64, (4, 64 * PAGE, 8, 64)
    stack = Stack(shape, torch.float32, CPU, PAGE, windowed=True)
    before = psutil.Process().memory_info().rss
    stack.stores.fill_(1.0)
    filled = psutil.Process().memory_info().rss - before
    assert filled > 0.9 * stack.stores.nbytes
    for page in range(1, pages):
        stack.give_back(page * PAGE, PAGE)
    left = psutil.Process().memory_info().rss - before
    assert left < 0.1 * stack.stores.nbytes
    assert bool((stack.stores[:, :PAGE] == 1).all()) and not stack.stores[:, PAGE:].any()


def test_a_pool_whose_pages_are_no_whole_pages_of_the_system_gives_nothing_up() -> None:
    odd, window = LayerGeometry(1, 3, 3), LayerGeometry(1, 64, 64, window=WINDOW)
    assert footprint_of([window, odd], torch.float32, CPU, PIECE) == Footprint()
    assert footprint_of([window, window], torch.float32, CPU, PIECE).windowed
    assert not footprint_of([window], torch.float32, torch.device("cuda"), PIECE).windowed
