"""Decides which draft tokens are accepted: the acceptance walk, and the rules for each node.

The module is pure: it draws nothing itself, because the target's distributions are passed to it as
values and randomness is passed to it as functions. `match` and `reject` preserve the target's
distribution; `top1` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.protos import tree
from tandem.protos.types import Distribution, Draft

Decision = tuple[int | None, int]
"""The accepted child and its token, or None and the token that is emitted if no child is accepted.
"""


def walk(
    parents: Sequence[int], decide: Callable[[int, Sequence[int]], Decision]
) -> tuple[tuple[int, ...], int]:
    """Follow the accepted children from the root downwards. Returns the accepted nodes, as a path
    from the root, and the token that is emitted after them.

    `decide(node, children)` is called only for nodes that the walk reaches; -1 stands for the root.
    """
    children = tree.children(parents)
    path: list[int] = []
    node = -1
    while True:
        accepted, token = decide(node, children[node + 1])
        if accepted is None:
            return tuple(path), token
        path.append(accepted)
        node = accepted


def match(draft: Draft, children: Sequence[int], token: int) -> Decision:
    """Accept the child whose token is the target's own draw. The emitted token is always the
    target's own draw, so no draft can change the text.
    """
    return next((child for child in children if draft.tokens[child] == token), None), token


def top1(
    draft: Draft, children: Sequence[int], likeliest: int, draw: Callable[[], int]
) -> Decision:
    """Accept the child whose token is the target's likeliest token; if there is no such child, draw
    a token.
    """
    child, token = match(draft, children, likeliest)
    return (child, token) if child is not None else (None, draw())


def reject(
    draft: Draft,
    node: int,
    children: Sequence[int],
    target: torch.Tensor,
    uniform: Callable[[int], float],
    draw: Callable[[torch.Tensor], int],
) -> Decision:
    """Decide by rejection sampling which of several siblings is accepted. The siblings were drawn
    without replacement, and are tested one after the other (arXiv 2211.17192; for trees 2305.09781
    and 2402.14160).

    `target` is the target's distribution after the node, [vocab] float64. `uniform(token)` returns
    a random number in (0, 1), and `draw(weights)` returns a token drawn with these weights.
    """
    chances, residual = acceptance_chances(draft, node, children, target)
    for child, chance in zip(children, chances, strict=True):
        if uniform(draft.tokens[child]) < chance:
            return child, draft.tokens[child]
    return None, draw(residual)


def acceptance_chances(
    draft: Draft, node: int, children: Sequence[int], target: torch.Tensor
) -> tuple[list[float], torch.Tensor]:
    """Return for each child the chance that it is accepted if all children before it were rejected:
    min(1, p / q). Also return the distribution [vocab] that remains of the target's distribution
    once all children were rejected.

    After a child is rejected, max(0, p - q) remains of the target's distribution, and the draft's
    distribution no longer contains the child's token. If a draft has no distributions, each child
    counts as certain, so its q is 1.
    """
    certain = not draft.distributions
    weights = (
        torch.zeros_like(target) if certain else _weights(draft.distributions[node + 1], target)
    )
    left = target
    chances: list[float] = []
    for child in children:
        token = draft.tokens[child]
        if certain:
            weights[token] = 1.0
        proposed = weights / weights.sum()
        chances.append(min(1.0, float(left[token] / proposed[token])))
        rest = (left - proposed).clamp(min=0.0)
        if rest.sum() <= 0:  # the two distributions are equal, so this child is accepted
            return chances + [1.0] * (len(children) - len(chances)), left
        left = rest / rest.sum()
        weights[token] = 0.0
    return chances, left


def _weights(drawn: Distribution, target: torch.Tensor) -> torch.Tensor:
    """Return the weights of a draft distribution as a tensor [vocab] like the target's, with zeros
    for all tokens that the distribution lacks.
    """
    weights = torch.zeros_like(target)
    weights[list(drawn.tokens)] = torch.tensor(drawn.weights, dtype=weights.dtype).to(weights)
    return weights
