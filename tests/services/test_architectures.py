"""Served architectures compute the same as transformers' own attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tests.families import ARCHITECTURES, CAPPED, CONTEXT
from tests.talks import Talk, some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
TOLERANCE = 1e-4
POSITIONS, SESSIONS, ROUNDS = 4096, 4, 5
FASTEST = AttentionBackend.PATHS if kernels() else AttentionBackend.TILES


class Walk:
    """Random sessions fed side by side: prompts, chains, trees grown in one step or two, rollback,
    compaction, and page tables that are copied, released and used again; in exact and in fast mode.

    `worst` is the largest difference of a row from a plain pass over its own path.
    """

    def __init__(self, folder: Path, backend: AttentionBackend | None = None) -> None:
        self.forward = HFRunner(load(folder), POSITIONS, backend=backend)
        self.plain = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.rng = random.Random(0)
        self.worst = 0.0
        self.talks = talks(self.forward, SESSIONS, 1)

    def run(self) -> float:
        for _ in range(ROUNDS):
            self.step()
        return self.worst

    @torch.inference_mode()
    def step(self) -> None:
        """Feed some of the sessions, check some of their rows, accept a path of each."""
        self.forward.exact = self.rng.random() < 0.5
        chosen = self.rng.sample(range(SESSIONS), self.rng.randint(2, SESSIONS))
        fed = [(talk, self.segment(talk)) for talk in map(self.prepared, chosen)]
        rows_of_each = self.feed([segment for _, segment in fed])
        for (talk, segment), rows in zip(fed, rows_of_each, strict=True):
            first = len(segment.tokens) - segment.num_logits
            for row in self.rng.sample(range(segment.num_logits), min(2, segment.num_logits)):
                self.check(talk.text, segment, first + row, rows[row])
            talk.commit(self.forward, segment, self.rng.randrange(first, len(segment.tokens)))

    def prepared(self, place: int) -> Talk:
        """Return a session to continue: as it is, rolled back, or replaced by a new one."""
        talk, most = self.talks[place], self.forward.model.context_length - 80
        chance = self.rng.random()
        if chance < 0.1:
            self.forward.pool.release(talk.table)
            (talk,) = self.talks[place : place + 1] = talks(self.forward, 1, 1)
        elif chance < 0.3 or len(talk.text) > most:
            del talk.text[self.rng.randint(0, most) :]
        return talk

    def segment(self, talk: Talk) -> Segment:
        """Return a segment with a few new tokens or a prompt, and a tree below."""
        nodes, head = self.rng.choice([0, 1, 5, 12]), self.rng.choice([1, 2, 60])
        tree_ = some_tokens(self.rng, nodes), some_tree(self.rng, nodes)
        segment = talk.segment(some_tokens(self.rng, head), *tree_)
        assert self.forward.pool.grow(talk.table, len(talk.text) + len(segment.tokens))
        return replace(segment, num_logits=nodes + 1)

    def feed(self, segments: list[Segment]) -> list[torch.Tensor]:
        """Return the wanted rows of all segments; half of the segments are fed in two steps, as a
        drafter does.
        """
        first, later = [], []
        for segment in segments:
            tokens, parents, wanted = segment.tokens, segment.parents, segment.num_logits
            put_off = self.rng.choice([0, self.rng.randrange(wanted)])
            cut = len(tokens) - put_off
            given = segment.table, segment.context
            first.append(Segment(*given, tokens[:cut], parents[:cut], wanted - put_off))
            later += [Segment(*given, tokens[cut:], parents, put_off)] if put_off else []
        rows = self.forward(first)
        more = iter(self.forward(later) if later else [])
        return [
            own if len(own) == segment.num_logits else torch.cat([own, next(more)])
            for own, segment in zip(rows, segments, strict=True)
        ]

    def check(self, held: list[int], segment: Segment, node: int, row: torch.Tensor) -> None:
        path = [segment.tokens[step] for step in tree.path(segment.parents, node)]
        ids = torch.tensor([held + path])
        plain = self.plain(input_ids=ids, use_cache=False).logits[0, -1]
        self.worst = max(self.worst, (plain - row).abs().max().item())


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [
        *((each, FASTEST) for each in ARCHITECTURES),
        *((each, AttentionBackend.TILES) for each in ("mistral_window", "gemma2", "gpt_oss")),
    ],
)
def test_every_row_equals_a_plain_pass_over_its_own_path(
    architecture: str, backend: AttentionBackend, make_model: MakeModel
) -> None:
    """The test covers attention by tiles too, which devices without other kernels and machines
    without a compiler use. No self-test refuses one of these architectures.
    """
    walk = Walk(make_model(architecture, 0), None if backend is FASTEST else backend)
    assert walk.forward.backend is backend
    assert walk.forward.model.context_length == CAPPED.get(architecture, CONTEXT)
    if self_test(walk.forward, architecture).problem:  # the walk then continues in fast mode
        walk.forward.give_up_exactness()
        self_test(walk.forward, architecture)
    assert walk.run() <= TOLERANCE


@pytest.mark.parametrize("architecture", [*CAPPED, "llama_dynamic"])
@torch.inference_mode()
def test_a_context_is_as_long_as_it_is_right_in_any_company(
    architecture: str, make_model: MakeModel
) -> None:
    """Beyond the context length, rotary positions change for the whole batch, or masks differ."""
    walk = Walk(make_model(architecture, 0))
    limit = walk.forward.model.context_length

    def prompt(talk: Talk, length: int) -> Segment:
        assert walk.forward.pool.grow(talk.table, length)
        return replace(talk.segment(some_tokens(walk.rng, length)), num_logits=1)

    def difference(length: int) -> float:
        segments = [prompt(walk.talks[0], length), prompt(walk.talks[1], 20)]
        for segment, rows in zip(segments, walk.forward(segments), strict=True):
            walk.check([], segment, len(segment.tokens) - 1, rows[0])
        return walk.worst

    assert difference(limit) <= TOLERANCE
    assert difference(limit + 8) > TOLERANCE


Mistake = Callable[[Walk, pytest.MonkeyPatch], None]


def rows_not_moved(walk: Walk, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk.forward.pool, "compact", lambda *_: None)


def a_mask_that_shows_cousins(walk: Walk, patch: pytest.MonkeyPatch) -> None:
    everything = lambda parents: torch.ones(len(parents), len(parents)).bool().tril()  # noqa: E731
    patch.setattr("tandem.engine.forward.tiles._ancestry", everything)


def a_path_along_cousins(walk: Walk, patch: pytest.MonkeyPatch) -> None:
    everything = lambda segment: [(node + 1, []) for node in range(len(segment.parents))]  # noqa: E731
    patch.setattr("tandem.engine.forward.cpu.paths._branches", everything)


def forgetting(feature: str) -> Mistake:
    def plant(walk: Walk, patch: pytest.MonkeyPatch) -> None:
        layers = [each for each in walk.forward.model.network.modules() if hasattr(each, feature)]
        assert layers
        for layer in layers:
            setattr(layer, feature, None)

    return plant


@pytest.mark.parametrize(
    ("architecture", "mistake"),
    [
        ("llama", rows_not_moved),
        ("llama", a_mask_that_shows_cousins),
        ("llama", a_path_along_cousins),
        ("qwen2_window", forgetting("sliding_window")),
        ("gpt_oss", forgetting("sinks")),
        ("gemma2", forgetting("attn_logit_softcapping")),
    ],
)
def test_a_walk_notices_a_mistake(
    architecture: str, mistake: Mistake, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake is a_path_along_cousins and kernels() is None:
        pytest.skip("the kernels were not built")
    by_tiles = AttentionBackend.TILES if mistake is a_mask_that_shows_cousins else None
    walk = Walk(make_model(architecture, 0), by_tiles)
    mistake(walk, monkeypatch)
    if walk.forward.backend is AttentionBackend.PATHS:
        walk.forward.fuse()  # passes recorded earlier lack this change
    assert walk.run() > TOLERANCE


@pytest.mark.skipif(kernels() is None, reason="the kernels were not built")
def test_a_network_that_cannot_be_recorded_is_served_by_its_own_code(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a network may raise any error")

    monkeypatch.setattr("tandem.engine.program.proof.record", fails)
    forward = HFRunner(load(make_model("llama", 0)), POSITIONS)
    assert forward.unfused == "ValueError: a network may raise any error"
    assert forward.kernels.endswith(", not fused")
    assert self_test(forward, "llama").problem is None
