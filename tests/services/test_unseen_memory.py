"""What no row sees is never multiplied on a CPU, so nothing has to be wiped there: whatever earlier
sessions left in the pool, the logits are the same, bit for bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tests.talks import some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS, NODES = 2048, 12
BACKENDS = [AttentionBackend.PATHS, AttentionBackend.TILES]


@torch.inference_mode()
def said(forward: HFRunner, left: float) -> torch.Tensor:
    """The logits of prompts, chains and trees that grow in two steps, in a pool that is full of
    what others `left`; [rows, vocab].
    """
    for stored in (*forward.pool.keys, *forward.pool.values):
        stored.fill_(left)
    rng, together, rows = random.Random(0), talks(forward, 3), list[torch.Tensor]()
    for length in (70, 1, 33):
        first, later = [], []
        for talk in together:
            head, parents = some_tokens(rng, length), some_tree(rng, NODES)
            whole = talk.segment(head, some_tokens(rng, NODES), parents)
            given, cut = (whole.table, whole.context), length + NODES // 2
            first.append(Segment(*given, whole.tokens[:cut], whole.parents[:cut], cut))
            later.append((talk, whole, Segment(*given, whole.tokens[cut:], whole.parents, 1)))
        rows += forward(first) + forward([rest for _, _, rest in later])
        for talk, whole, _ in later:
            talk.commit(forward, whole, rng.randrange(length, length + NODES))
    for talk in together:
        forward.pool.release(talk.table)
    return torch.cat(rows)


@pytest.mark.parametrize("family", ["llama", "mistral_window", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_do_not_depend_on_what_others_left_in_memory(
    backend: AttentionBackend, family: str, make_model: MakeModel
) -> None:
    if backend is AttentionBackend.PATHS and kernels() is None:
        pytest.skip("the kernels were not built")
    forward = HFRunner(load(make_model(family, 0)), POSITIONS, backend=backend)
    clean = said(forward, 0.0)
    assert bool(clean.isfinite().all())
    for left in (math.nan, math.inf, 7.0):
        assert torch.equal(said(forward, left), clean)
