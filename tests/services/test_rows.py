"""Passes by rows: the arithmetic of the CUDA back end, on a CPU, with its kernel spelled out."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.engine.cache.ranges import KVRange
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cuda import flash
from tandem.engine.forward.cuda.rows import REACH, STEP, TAIL, WIDEST
from tandem.engine.forward.cuda.table import FEW, SIZES, RowTable, prefix_lengths, row_plans
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tandem.protos.types import MAX_NODES
from tests.families import SERVED
from tests.talks import differing_rows, largest_difference, some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS = 2048


@pytest.fixture(autouse=True)
def _spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such kernel for CPUs."""
    monkeypatch.setattr(flash, "flash_kernel", flash.reference_kernel)


def by_rows(folder: Path, exact: bool = True) -> HFRunner:
    return HFRunner(load(folder), POSITIONS, exact, AttentionBackend.ROWS)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("family", SERVED)
def test_every_row_is_what_a_plain_pass_gives(
    family: str, exact: bool, make_model: MakeModel
) -> None:
    forward = by_rows(make_model(family, 0), exact)
    assert largest_difference(forward, random.Random(family)) <= 1e-4


@pytest.mark.parametrize("family", SERVED)
def test_a_row_is_the_same_alone_and_in_company(family: str, make_model: MakeModel) -> None:
    """In passes of several sizes: on a CPU they agree."""
    forward = by_rows(make_model(family, 0))
    assert differing_rows(forward, random.Random(1)) == []


@pytest.mark.parametrize("context", [1, 60, 90, 95, 96, 97, 128])
def test_a_branch_may_be_as_deep_as_a_draft_is_long(context: int, make_model: MakeModel) -> None:
    """The longest draft there is, all of it behind a wrong guess, with the same bits as a chain."""
    forward, rng = by_rows(make_model("llama", 0)), random.Random(context)
    straight, aside = talks(forward, 2)
    for talk in (straight, aside):
        talk.say(forward, (7,) * context)
    text = some_tokens(rng, MAX_NODES)
    (chain,) = forward([straight.segment((5,), text[1:], tree.chain(MAX_NODES - 1))])
    parents = (-1, -1, *range(1, MAX_NODES - 1))
    (branch,) = forward([aside.segment((5,), (9, *text[1:]), parents)])
    assert torch.equal(chain[1:], branch[2:])


def test_a_tree_fed_level_by_level_gives_the_same_rows(make_model: MakeModel) -> None:
    """As a drafter feeds it: nodes that are cached already are seen as if they came now."""
    forward, rng = by_rows(make_model("llama", 0)), random.Random(3)
    whole, grown = talks(forward, 2)
    for talk in (whole, grown):
        talk.say(forward, (3,) * 94)
    parents = (-1, -1, 0, 0, 1, 3, 3, 4, 7, 6)
    tokens = some_tokens(rng, len(parents))
    (expected,) = forward([whole.segment((), tokens, parents)])
    for start, stop in ((0, 2), (2, 5), (5, 8), (8, 10)):
        piece = Segment(grown.kv_range, 94, tokens[start:stop], parents[:stop], stop - start)
        assert torch.equal(forward([piece])[0], expected[start:stop])


@pytest.mark.parametrize("family", SERVED)
def test_the_self_test_finds_passes_by_rows_exact(family: str, make_model: MakeModel) -> None:
    assert str(self_test(by_rows(make_model(family, 0)), family)) == "exact"


def test_tails_that_ignore_branches_are_noticed(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake that gathering by path guards against."""

    def straight(table: RowTable, cut: Any) -> Any:
        _, positions, _, kv_ranges, _, _ = table.rows
        return kv_ranges[:, None] + np.minimum(cut[:, None] + np.arange(TAIL), positions[:, None])

    forward = by_rows(make_model("llama", 0))
    monkeypatch.setattr("tandem.engine.forward.cuda.table._tails", straight)
    with pytest.raises(Unusable, match="differ by"):
        self_test(forward, "llama")


def test_prefixes_that_are_cut_elsewhere_are_noticed(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One position short: the tail begins where the prefix should end."""
    forward = by_rows(make_model("llama", 0))
    spelled_out = flash.flash_kernel

    def short(query: Any, keys: Any, values: Any, spans: Any, scale: float) -> Any:
        spans.lengths.sub_((spans.lengths > TAIL).int())
        return spelled_out(query, keys, values, spans, scale)

    monkeypatch.setattr(flash, "flash_kernel", short)
    assert largest_difference(forward, random.Random(0)) > 1e-2


@pytest.mark.parametrize("spoilt", ["output", "sums"])
def test_a_kernel_that_computes_something_else_is_not_used(
    spoilt: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, sums = flash.reference_kernel(*given)
        return (output * 1.1, sums) if spoilt == "output" else (output, sums + 0.1)

    monkeypatch.setattr(flash, "flash_kernel", wrong)
    with pytest.raises(Unusable, match="the attention kernel is off by"):
        by_rows(make_model("llama", 0))


def test_a_model_with_a_sliding_window_does_not_go_by_rows(make_model: MakeModel) -> None:
    with pytest.raises(Unusable, match="a layer has a sliding window"):
        by_rows(make_model("qwen2_window", 0))


def test_a_window_wider_than_the_context_is_none(make_model: MakeModel) -> None:
    forward = by_rows(make_model("mistral_wide", 0))
    assert largest_difference(forward, random.Random(4)) <= 1e-4


def test_a_cpu_has_no_graphs(make_model: MakeModel) -> None:
    model = load(make_model("llama", 0))
    with pytest.raises(Unusable, match="no graphs on cpu"):
        HFRunner(model, POSITIONS, backend=AttentionBackend.GRAPHS)


def test_a_position_alone_says_where_a_path_is_cut() -> None:
    positions = np.arange(4096)
    cut = prefix_lengths(positions)
    assert (cut % STEP == 0).all() and (np.diff(cut) >= 0).all()
    own = positions - cut + 1  # keys of the tail, the row's own included
    assert own.max() == TAIL and (own[TAIL:] > REACH).all() and (cut[:TAIL] == 0).all()


def test_a_pass_has_few_forms_and_pads_with_rows_that_touch_no_session() -> None:
    """However many rows there are, runs are short, cover all of them and stay in their KV range."""
    rng, padding_slot = random.Random(0), 10_000
    for _ in range(200):
        fed = []
        for slot in range(rng.randint(0, 9)):
            count = rng.choice([1, 2, 5, 17, 64])
            tokens, parents = (1,) * count, some_tree(rng, count)
            kv_range, context = KVRange(512 * slot, 512), rng.randrange(300)
            fed.append(Segment(kv_range, context, tokens, parents, rng.randint(0, count)))
        total = sum(len(segment.tokens) for segment in fed)
        passes = row_plans(fed, padding_slot, exact=False)
        assert [rows.shape.rows for rows in passes[:-1]] == [SIZES[-1]] * (len(passes) - 1)
        assert sum(rows.wanted for rows in passes) == sum(segment.wanted for segment in fed)
        places = torch.cat([rows.slots for rows in passes])
        assert (places[total:] == padding_slot).all() and len(set(places[:total].tolist())) == total
        for rows in passes:
            assert rows.shape.outputs in (0, FEW, rows.shape.rows)
            spans = rows.prefix_and_tail(1).prefix
            assert spans.bounds.diff().max() <= WIDEST and spans.bounds[-1] == rows.shape.rows
            for run, kv_ranges in enumerate(rows.slots.tensor_split(spans.bounds[1:-1].tolist())):
                if len(kv_ranges) and kv_ranges[0] != padding_slot:
                    assert (kv_ranges // 512 == spans.starts[run] // 512).all()
