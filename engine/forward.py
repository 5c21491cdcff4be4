"""The many-session forward pass: segments in, logits out.

Joins model, cache and plan; knows nothing of sessions or of what the logits are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine import attention
from engine.kv import SlabCache
from engine.model import Model
from engine.plan import Segment, plan
from protos import tree
from protos.errors import Unusable

SCRATCH = 256  # positions behind the context for drafted nodes
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


class Forward:
    """A model with room for many sessions."""

    def __init__(self, model: Model, slots: int, context_length: int) -> None:
        self.model = model
        self.context_length = context_length
        self.cache = SlabCache(
            model.layers, slots, context_length + SCRATCH, model.dtype, model.device
        )

    @torch.inference_mode()
    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed all segments in one pass; float32 logits per segment, [wanted, vocab].

        Where a model overflows, its logits are NaN; the slot is wiped, so that the next session is
        not harmed.
        """
        step = plan(segments, self.model.device)
        with attention.stepping(attention.Step(step, self.cache)):
            logits = self.model.network(
                input_ids=step.token_ids,
                position_ids=step.positions,
                attention_mask=None,
                use_cache=False,
                logits_to_keep=step.logits_rows,
            ).logits[0]
        rows = list(logits[: sum(step.wanted)].float().split(step.wanted))
        for segment, own in zip(segments, rows, strict=True):
            if own.isnan().any():
                self.cache.wipe(segment.slot)
        return rows


def self_test(forward: Forward, name: str) -> float:
    """Compare a tree, fed in two steps beside a second session, with plain passes over each branch.

    Returns the largest difference; raises Unusable if the model does not compute the same through
    the hook.
    """
    model, network = forward.model, forward.model.network
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.vocab_size, (24,), generator=generator).tolist()
    context, nodes, parents = tuple(ids[:10]), tuple(ids[10:16]), (-1, 0, 0, 1, 2, -1)
    first, second = forward.cache.take(), forward.cache.take()
    forward(
        [
            Segment(first, 0, context[:-1], tree.chain(9), 1),
            Segment(second, 0, tuple(ids[16:]), tree.chain(8), 1),
        ]
    )
    fed, hung = (context[-1], *nodes), tree.hang(1, parents)
    (rows,) = forward([Segment(first, 9, fed, hung, len(fed))])
    forward.cache.give_back(second)
    forward.cache.give_back(first)
    worst = 0.0
    network.set_attn_implementation("eager")
    for node in range(-1, len(nodes)):
        path, step = [], node
        while step >= 0:
            path.append(nodes[step])
            step = parents[step]
        plain = torch.tensor([[*context, *reversed(path)]], device=model.device)
        with torch.inference_mode():
            logits = network(input_ids=plain, use_cache=False).logits[0, -1].float()
        worst = max(worst, (logits - rows[node + 1]).abs().max().item())
    network.set_attn_implementation(attention.NAME)
    if not worst <= TOLERANCE[model.dtype] * max(1.0, rows.abs().max().item() / 10):
        raise Unusable(
            f"{name} cannot be served: its logits through our attention differ by {worst:.2g}"
        )
    return worst
