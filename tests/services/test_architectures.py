"""Served architectures compute as transformers' own attention does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.cache.ranges import KVRange
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tests.families import ARCHITECTURES, CAPPED, CONTEXT, VOCABULARY

MakeModel = Callable[[str, int], Path]
TOLERANCE = 1e-4
POSITIONS, SESSIONS, ROUNDS = 4096, 4, 8
WINDOW, SINKS, CAP = "sliding_window", "sinks", "attn_logit_softcapping"
FEATURES = {"qwen2_window": WINDOW, "gpt_oss": SINKS, "gemma2": CAP}


@dataclass(slots=True)
class Text:
    """One session: its KV range and what it holds."""

    kv_range: KVRange
    tokens: list[int] = field(default_factory=list)


class Walk:
    """Sessions fed side by side at random: prompts, chains, trees grown in one step or two,
    rollback, compaction, KV ranges that move, are left and taken again; in exact and in fast mode.

    `worst` is the largest difference of a row from a plain pass over its own path.
    """

    def __init__(self, folder: Path, backend: AttentionBackend | None = None) -> None:
        self.forward = HFRunner(load(folder), POSITIONS, backend=backend)
        self.plain = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.rng = random.Random(0)
        self.worst = 0.0
        self.texts = [self.new_text() for _ in range(SESSIONS)]

    def new_text(self) -> Text:
        kv_range = self.forward.pool.allocate(1)
        assert kv_range
        return Text(kv_range)

    def run(self) -> float:
        for _ in range(ROUNDS):
            self.step()
        return self.worst

    @torch.inference_mode()
    def step(self) -> None:
        """Feed some of the sessions, check some of their rows, accept a path of each."""
        self.forward.exact = self.rng.random() < 0.5
        chosen = self.rng.sample(range(SESSIONS), self.rng.randint(2, SESSIONS))
        texts = [self.prepared(place) for place in chosen]
        segments = [self.segment(text) for text in texts]
        for text, segment, rows in zip(texts, segments, self.feed(segments), strict=True):
            first = len(segment.tokens) - segment.wanted
            for row in self.rng.sample(range(segment.wanted), min(2, segment.wanted)):
                self.check(text.tokens, segment, first + row, rows[row])
            path = tree.path(segment.parents, self.rng.randrange(first, len(segment.tokens)))
            self.forward.pool.compact(text.kv_range, segment.context, path)
            text.tokens += [segment.tokens[node] for node in path]

    def prepared(self, place: int) -> Text:
        """A session to go on with: as it is, rolled back, or a new one in its place."""
        text, most = self.texts[place], self.forward.model.context_length - 80
        chance = self.rng.random()
        if chance < 0.1:
            self.forward.pool.release(text.kv_range)
            text = self.texts[place] = self.new_text()
        elif chance < 0.3 or len(text.tokens) > most:
            del text.tokens[self.rng.randint(0, most) :]
        return text

    def segment(self, text: Text) -> Segment:
        """A few new tokens or a prompt, with a tree hung below."""
        fresh, nodes = self.rng.choice([1, 2, 60]), self.rng.choice([0, 1, 5, 12])
        tokens = tuple(self.rng.randrange(VOCABULARY) for _ in range(fresh + nodes))
        parents = tree.hang(fresh, [self.rng.randrange(-1, node) for node in range(nodes)])
        assert self.forward.pool.grow(text.kv_range, len(text.tokens) + len(tokens))
        return Segment(text.kv_range, len(text.tokens), tokens, parents, nodes + 1)

    def feed(self, segments: list[Segment]) -> list[torch.Tensor]:
        """The wanted rows of all segments; half of them are fed in two steps, as a drafter does."""
        first, later = [], []
        for segment in segments:
            tokens, parents, wanted = segment.tokens, segment.parents, segment.wanted
            put_off = self.rng.choice([0, self.rng.randrange(wanted)])
            cut = len(tokens) - put_off
            given = segment.kv_range, segment.context
            first.append(Segment(*given, tokens[:cut], parents[:cut], wanted - put_off))
            later += [Segment(*given, tokens[cut:], parents, put_off)] if put_off else []
        rows = self.forward(first)
        more = iter(self.forward(later) if later else [])
        return [
            own if len(own) == segment.wanted else torch.cat([own, next(more)])
            for own, segment in zip(rows, segments, strict=True)
        ]

    def check(self, held: list[int], segment: Segment, node: int, row: torch.Tensor) -> None:
        path = [segment.tokens[step] for step in tree.path(segment.parents, node)]
        ids = torch.tensor([held + path])
        plain = self.plain(input_ids=ids, use_cache=False).logits[0, -1]
        self.worst = max(self.worst, (plain - row).abs().max().item())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_row_equals_a_plain_pass_over_its_own_path(
    architecture: str, make_model: MakeModel
) -> None:
    walk = Walk(make_model(architecture, 0))
    assert walk.forward.backend is (AttentionBackend.PATHS if kernels() else AttentionBackend.TILES)
    assert walk.forward.model.context_length == CAPPED.get(architecture, CONTEXT)
    assert walk.run() <= TOLERANCE


@pytest.mark.parametrize("architecture", ["llama", "mistral_window", "gemma2", "gpt_oss"])
def test_by_tiles_it_does_too(architecture: str, make_model: MakeModel) -> None:
    """As on devices without other kernels, and without a compiler."""
    assert Walk(make_model(architecture, 0), AttentionBackend.TILES).run() <= TOLERANCE


@pytest.mark.parametrize("architecture", [*CAPPED, "llama_dynamic"])
@torch.inference_mode()
def test_a_context_is_as_long_as_it_is_right_in_any_company(
    architecture: str, make_model: MakeModel
) -> None:
    """Beyond it, rotary positions change for the whole batch, or masks differ."""
    walk = Walk(make_model(architecture, 0))
    limit = walk.forward.model.context_length

    def prompt(text: Text, length: int) -> Segment:
        assert walk.forward.pool.grow(text.kv_range, length)
        tokens = tuple(walk.rng.choices(range(VOCABULARY), k=length))
        return Segment(text.kv_range, 0, tokens, tree.chain(length), 1)

    def difference(length: int) -> float:
        segments = [prompt(walk.texts[0], length), prompt(walk.texts[1], 20)]
        for segment, rows in zip(segments, walk.forward(segments), strict=True):
            walk.check([], segment, len(segment.tokens) - 1, rows[0])
        return walk.worst

    assert difference(limit) <= TOLERANCE
    assert difference(limit + 8) > TOLERANCE


def test_a_walk_notices_that_rows_were_not_moved(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(make_model("llama", 0))
    monkeypatch.setattr(walk.forward.pool, "compact", lambda *_: None)
    assert walk.run() > TOLERANCE


def test_a_walk_notices_a_mask_that_shows_cousins(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = lambda parents: torch.ones(len(parents), len(parents)).bool().tril()  # noqa: E731
    monkeypatch.setattr("tandem.engine.forward.tiles._ancestry", everything)
    assert Walk(make_model("llama", 0), AttentionBackend.TILES).run() > TOLERANCE


@pytest.mark.skipif(kernels() is None, reason="the kernels were not built")
def test_a_walk_notices_a_path_along_cousins(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = lambda segment: [(node + 1, []) for node in range(len(segment.parents))]  # noqa: E731
    monkeypatch.setattr("tandem.engine.forward.cpu.paths._branches", everything)
    assert Walk(make_model("llama", 0)).run() > TOLERANCE


@pytest.mark.parametrize(("architecture", "feature"), FEATURES.items())
def test_a_walk_notices_a_forgotten_feature(
    architecture: str, feature: str, make_model: MakeModel
) -> None:
    walk = Walk(make_model(architecture, 0))
    layers = [module for module in walk.forward.model.network.modules() if hasattr(module, feature)]
    for layer in layers:
        setattr(layer, feature, None)
    assert layers
    assert walk.run() > TOLERANCE
