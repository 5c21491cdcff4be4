"""Which draft tokens stand: the acceptance walk, and the rules that decide at each node.

Pure: the target's distributions come in as values and randomness as functions, nothing is drawn
here. `match` and `reject` preserve the target's distribution, `top1` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from protos import tree
from protos.types import Distribution, Draft

Standing = tuple[int | None, int]
"""The child that stands, if one does, and its token or else the next token."""


def walk(
    parents: Sequence[int], decide: Callable[[int, Sequence[int]], Standing]
) -> tuple[tuple[int, ...], int]:
    """Follow the children that stand: (accepted nodes as a path from the root, next token).

    `decide(node, children)` is asked only at nodes that are reached, -1 being the root.
    """
    children = tree.children(parents)
    path: list[int] = []
    node = -1
    while True:
        standing, token = decide(node, children[node + 1])
        if standing is None:
            return tuple(path), token
        path.append(standing)
        node = standing


def match(draft: Draft, children: Sequence[int], token: int) -> Standing:
    """The target's own draw decides: the child that has it stands. What is emitted is always that
    draw, so no draft can change the text.
    """
    return next((child for child in children if draft.tokens[child] == token), None), token


def top1(
    draft: Draft, children: Sequence[int], likeliest: int, draw: Callable[[], int]
) -> Standing:
    """The child that is the target's likeliest token stands; else one token is drawn."""
    child, token = match(draft, children, likeliest)
    return (child, token) if child is not None else (None, draw())


def reject(
    draft: Draft,
    node: int,
    children: Sequence[int],
    target: torch.Tensor,
    uniform: Callable[[int], float],
    draw: Callable[[torch.Tensor], int],
) -> Standing:
    """Rejection sampling in rounds, one per child, siblings being drawn without replacement
    (2211.17192; trees: 2305.09781, 2402.14160).

    `target` is the target's distribution behind the node, [vocab] float64; `uniform(token)` gives
    numbers in (0, 1) and `draw(weights)` a token.
    """
    chances, residual = trials(draft, node, children, target)
    for child, chance in zip(children, chances, strict=True):
        if uniform(draft.tokens[child]) < chance:
            return child, draft.tokens[child]
    return None, draw(residual)


def trials(
    draft: Draft, node: int, children: Sequence[int], target: torch.Tensor
) -> tuple[list[float], torch.Tensor]:
    """The chance of each child to stand once those before it fell, min(1, p / q), and what is left
    of the target when all fell, [vocab].

    A fallen child leaves max(0, p - q) of the target, and is not drawn again. A draft that does not
    say what it was drawn from counts as certain: q is 1 for each child in turn.
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
        if rest.sum() <= 0:  # the two agree, so this child stands
            return chances + [1.0] * (len(children) - len(chances)), left
        left = rest / rest.sum()
        weights[token] = 0.0
    return chances, left


def _weights(drawn: Distribution, target: torch.Tensor) -> torch.Tensor:
    weights = torch.zeros_like(target)
    weights[list(drawn.tokens)] = torch.tensor(drawn.weights, dtype=weights.dtype).to(weights)
    return weights
