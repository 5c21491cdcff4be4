"""Which draft tokens are accepted: the acceptance walk, and the rules that decide at each node.

Pure: the target's distributions come in as values and randomness as functions, nothing is drawn
here. `match` and `reject` preserve the target's distribution, `top1` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.protos import tree
from tandem.protos.types import Distribution, Draft

Decision = tuple[int | None, int]
"""The accepted child, if there is one, and its token or else the next token."""


def walk(
    parents: Sequence[int], decide: Callable[[int, Sequence[int]], Decision]
) -> tuple[tuple[int, ...], int]:
    """Follow the accepted children: (accepted nodes as a path from the root, next token).

    `decide(node, children)` is asked only at nodes that are reached, -1 being the root.
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
    """The target's own draw decides: the child that has it is accepted. What is emitted is always
    that draw, so no draft can change the text.
    """
    return next((child for child in children if draft.tokens[child] == token), None), token


def top1(
    draft: Draft, children: Sequence[int], likeliest: int, draw: Callable[[], int]
) -> Decision:
    """The child that is the target's likeliest token is accepted; else one token is drawn."""
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
    """Rejection sampling in rounds, one per child, siblings being drawn without replacement
    (2211.17192; trees: 2305.09781, 2402.14160).

    `target` is the target's distribution after the node, [vocab] float64; `uniform(token)` gives
    numbers in (0, 1) and `draw(weights)` a token.
    """
    chances, residual = acceptance_chances(draft, node, children, target)
    for child, chance in zip(children, chances, strict=True):
        if uniform(draft.tokens[child]) < chance:
            return child, draft.tokens[child]
    return None, draw(residual)


def acceptance_chances(
    draft: Draft, node: int, children: Sequence[int], target: torch.Tensor
) -> tuple[list[float], torch.Tensor]:
    """The chance of each child to be accepted once those before it were rejected, min(1, p / q),
    and what is left of the target when all were rejected, [vocab].

    A rejected child leaves max(0, p - q) of the target, and is not drawn again. A draft without the
    distributions it was drawn from counts as certain: q is 1 for each child in turn.
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
        if rest.sum() <= 0:  # the two agree, so this child is accepted
            return chances + [1.0] * (len(children) - len(chances)), left
        left = rest / rest.sum()
        weights[token] = 0.0
    return chances, left


def _weights(drawn: Distribution, target: torch.Tensor) -> torch.Tensor:
    weights = torch.zeros_like(target)
    weights[list(drawn.tokens)] = torch.tensor(drawn.weights, dtype=weights.dtype).to(weights)
    return weights
