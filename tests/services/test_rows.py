"""Passes by rows: the arithmetic of the CUDA back end, on a CPU, with its kernel written in
PyTorch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.engine.cache.pages import PAGE
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward import operations
from tandem.engine.forward.cuda import attention
from tandem.engine.forward.cuda.rows import HEADER, RECORD, TAIL, RowPlan
from tandem.engine.forward.cuda.table import RowTable
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tandem.protos.types import MAX_NODES
from tests.talks import differing_rows, largest_difference, some_tokens, talks

MakeModel = Callable[[str, int], Path]
POSITIONS = 2048


def by_rows(folder: Path, exact: bool = True) -> HFRunner:
    return HFRunner(load(folder), POSITIONS, exact, AttentionBackend.ROWS)


@pytest.mark.parametrize(
    ("family", "exact"),
    [
        ("gpt2", True),
        ("llama", True),
        ("llama", False),
        ("qwen2", True),
        ("mistral_wide", True),  # its window is wider than its context
        ("qwen2_window", True),
        ("gemma2", True),  # its scores are capped
        ("gpt_oss", True),  # a family with sinks
    ],
)
def test_every_row_is_what_a_plain_pass_gives(
    family: str, exact: bool, make_model: MakeModel
) -> None:
    forward = by_rows(make_model(family, 0), exact)
    assert largest_difference(forward, random.Random(family)) <= 1e-4


@pytest.mark.parametrize(
    ("family", "fused"),
    [
        ("llama", (24, 41)),
        ("qwen3", (24, 45)),  # its norms of heads are separate calls
        ("gemma2", (24, 48)),
        ("gemma3_text", (48, 94)),
        ("phi3", (28, 45)),
        ("gpt_neox", (0, 49)),  # a family that adds after two layers that read the same rows
    ],
)
def test_sums_and_norms_and_rotary_positions_are_fused(
    family: str, fused: tuple[int, int], make_model: MakeModel
) -> None:
    """The fused passes equal the network's own bit for bit, as the check before fusing promised."""
    forward = by_rows(make_model(family, 0))
    assert (forward.unfused, forward.kernels.rpartition("fused ")[2]) == (
        None,
        "{} of {}".format(*fused),
    )


def test_a_fusion_that_computes_something_else_is_not_taken(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a sum that is normalised before it is rounded."""
    add_norm = operations.add_norm

    def other(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sums, normed = add_norm(*given)
        return sums, normed * (1 + 2**-20)

    monkeypatch.setattr(operations, "add_norm", other)
    forward = by_rows(make_model("llama", 0))
    assert forward.unfused and "computes different logits" in forward.unfused
    assert largest_difference(forward, random.Random(0)) <= 1e-4


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_row_is_the_same_alone_and_in_company(family: str, make_model: MakeModel) -> None:
    """Rows are compared in passes of several sizes, which agree on a CPU."""
    forward = by_rows(make_model(family, 0))
    assert str(self_test(forward, family)) == "exact"
    assert differing_rows(forward, random.Random(1), 140) == []


@pytest.mark.parametrize("context", [1, 60, 95, 96, 128])
def test_a_branch_may_be_as_deep_as_a_draft_is_long(context: int, make_model: MakeModel) -> None:
    """The test has the longest possible draft below a wrong proposal; it gets the same bits as a
    chain.
    """
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
    """A drafter feeds trees so: cached nodes are seen as if they were fed now."""
    forward, rng = by_rows(make_model("llama", 0)), random.Random(3)
    whole, grown = talks(forward, 2)
    for talk in (whole, grown):
        talk.say(forward, (3,) * 94)
    parents = (-1, -1, 0, 0, 1, 3, 3, 4, 7, 6)
    tokens = some_tokens(rng, len(parents))
    (expected,) = forward([whole.segment((), tokens, parents)])
    for start, stop in ((0, 2), (2, 5), (5, 8), (8, 10)):
        piece = Segment(grown.table, 94, tokens[start:stop], parents[:stop], stop - start)
        assert torch.equal(forward([piece])[0], expected[start:stop])


def test_tails_that_ignore_branches_are_noticed(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake is the one that gathering keys by path prevents."""

    def straight(table: RowTable, cut: Any) -> Any:
        _, positions, _, sessions, _, _ = table.rows
        lanes = np.minimum(cut[:, None] + np.arange(TAIL), positions[:, None])
        return table.pages[sessions[:, None], lanes // PAGE] * PAGE + lanes % PAGE

    forward = by_rows(make_model("llama", 0))
    monkeypatch.setattr("tandem.engine.forward.cuda.table._tails", straight)
    with pytest.raises(Unusable, match="differ by"):
        self_test(forward, "llama")


def test_prefixes_that_are_cut_elsewhere_are_noticed(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake makes the prefix one position too short."""
    forward = by_rows(make_model("llama", 0))
    spelled_out = attention.definition

    def short(rows: RowPlan, *given: Any) -> torch.Tensor:
        for number in range(int(rows.reads[0])):
            rows.reads[HEADER + number * RECORD + 3] -= 1
        return spelled_out(rows, *given)

    monkeypatch.setattr(attention, "definition", short)
    assert largest_difference(forward, random.Random(0)) > 1e-2


def test_a_kernel_that_computes_something_else_is_not_used(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attend", lambda *given: attention.definition(*given) * 1.1)
    with pytest.raises(Unusable, match="the attention kernel differs from its reference"):
        by_rows(make_model("llama", 0))


def test_what_a_device_cannot_do_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(Unusable, match="backend graphs: CUDA graphs need a CUDA device, not cpu"):
        HFRunner(load(make_model("llama", 0)), POSITIONS, backend=AttentionBackend.GRAPHS)
