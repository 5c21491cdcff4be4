"""Memory outside a row's own text is never multiplied, so it is not cleared between sessions:
whatever earlier sessions left in the pool, the logits are the same, bit for bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import Internal
from tandem.protos.types import Context
from tests.talks import some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS, NODES = 2048, 12
BACKENDS = [AttentionBackend.PATHS, AttentionBackend.TILES, AttentionBackend.ROWS]
TEXT = 150


def running(backend: AttentionBackend, folder: Path) -> HFRunner:
    """Return a forward pass with this attention; passes by rows use the attention written in
    PyTorch.
    """
    if backend is AttentionBackend.PATHS and kernels() is None:
        pytest.skip("the kernels were not built")
    return HFRunner(load(folder), POSITIONS, backend=backend)


@torch.inference_mode()
def said(forward: HFRunner, left: float) -> torch.Tensor:
    """Return the logits of prompts, chains and trees that grow in two steps, in a pool filled with
    `left`; [rows, vocab].
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
    forward = running(backend, make_model(family, 0))
    clean = said(forward, 0.0)
    assert bool(clean.isfinite().all())
    for left in (math.nan, math.inf, 7.0):
        assert torch.equal(said(forward, left), clean)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_the_pages_of_a_session_that_overflowed_harm_nobody(
    backend: AttentionBackend, make_model: MakeModel
) -> None:
    """The next session gets the pages of the overflowed session without clearing."""
    forward, rng = running(backend, make_model("llama", 0)), random.Random(0)
    sessions = Sessions(forward.pool, TEXT, 2, count(1).__next__, 1.0, lambda: 0.0)
    words, spoilt = some_tokens(rng, TEXT), list[bool]()

    def fed(name: bytes) -> torch.Tensor:
        """Return the logits of the last token of a new session."""
        context = Context(name, 1, 0, words, client=name)
        with sessions.acquire(context, 0) as session:
            stores = (*forward.pool.keys, *forward.pool.values)
            slots = session.table.slots(0, TEXT)
            spoilt.append(any(bool(each[slots].isnan().any()) for each in stores))
            segment = Segment(session.table, 0, words, tree.chain(TEXT), 1)
            (logits,) = forward([segment])
            feeding = sessions.feed(context, segment)
            next(feeding)
            with pytest.raises(StopIteration):
                feeding.send(logits)
        sessions.close(name)
        return logits

    expected = fed(b"a")
    embedding = forward.model.network.get_input_embeddings().weight[words[40]]
    right = embedding.clone()
    embedding.fill_(torch.inf)
    with pytest.raises(Internal, match="overflowed"):
        fed(b"b")
    embedding.copy_(right)
    assert torch.equal(fed(b"c"), expected)
    assert spoilt == [False, False, True]
