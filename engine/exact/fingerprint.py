"""The fingerprint of a model: what this process computes for a fixed text.

Two model services with the same one continue each other's texts. Found out by trying, as exactness
is, so that weights, dtype, kernels and anything else that decides the logits count.
"""

from __future__ import annotations

from hashlib import sha256

import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.model_runner import ModelRunner
from tandem.protos import tree

PROBE_TOKENS = 24
STRIDE = 7919  # between their ids


@torch.inference_mode()
def model_fingerprint(runner: ModelRunner, tokenizer_fingerprint: str) -> str:
    """A short hash of the tokenizer, the dtype, the vocabulary, and the bits of the logits of a
    fixed text, fed alone.
    """
    model = runner.model
    count = min(PROBE_TOKENS, model.context_length)
    tokens = tuple(STRIDE * (place + 1) % model.token_count for place in range(count))
    kv_range = runner.pool.allocate(count)
    assert kv_range, "there is no session yet"
    try:
        (logits,) = runner([Segment(kv_range, 0, tokens, tree.chain(count), count)])
    finally:
        runner.pool.release(kv_range)
    known = f"{tokenizer_fingerprint} {model.numbers} {model.vocab_size} ".encode()
    return sha256(known + logits.float().cpu().numpy().tobytes()).hexdigest()[:16]
