"""Compute two fingerprints of a model: one of the logits that this process computes for a fixed
text, and one of the model's files.

Two model services with the same fingerprint of the logits can continue each other's texts. The
fingerprint of the logits is computed by a forward pass, like the logits of the self-test. This
fingerprint therefore depends on the weights, the dtype, the kernels and everything else that
influences the logits. Two services with the same fingerprint of the files have the same model, but
the last bits of their logits may differ.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.model_runner import ModelRunner
from tandem.protos import tree

PROBE_TOKENS = 24
STRIDE = 7919  # difference between the ids of neighbouring tokens in the fixed text
SAMPLES, SAMPLE_BYTES = 4096, 256  # number of samples of each file, and bytes of a sample
OF_NO_WEIGHT = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}


@torch.inference_mode()
def model_fingerprint(runner: ModelRunner, tokenizer_fingerprint: str) -> str:
    """Return a short hash of the tokenizer, the dtype, the vocabulary, and the bits of the logits
    of a fixed text that is fed without other texts.
    """
    model = runner.model
    count = min(PROBE_TOKENS, model.context_length)
    tokens = tuple(STRIDE * (position + 1) % model.token_count for position in range(count))
    table = runner.pool.allocate(count)
    assert table, "the cache is empty, because there is no session yet"
    try:
        (logits,) = runner([Segment(table, 0, tokens, tree.chain(count), count)])
    finally:
        runner.pool.release(table)
    known = f"{tokenizer_fingerprint} {model.numbers} {model.vocab_size} ".encode()
    return sha256(known + logits.float().cpu().numpy().tobytes()).hexdigest()[:16]


def weights_fingerprint(folder: Path, tokenizer_fingerprint: str) -> str:
    """Return a short hash of the tokenizer and of the files of a model directory, or of a GGUF
    file. The hash covers the size of each file and samples of its content, so it is computed
    quickly even for large files.
    """
    digest = sha256(tokenizer_fingerprint.encode())
    files = [folder]
    if folder.is_dir():
        files = sorted(folder.glob("*.safetensors"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        decides = {name: config[name] for name in sorted(config.keys() - OF_NO_WEIGHT)}
        digest.update(json.dumps(decides, sort_keys=True).encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f" {size} ".encode())
        with file.open("rb") as content:
            for offset in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
                content.seek(offset)
                digest.update(content.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
