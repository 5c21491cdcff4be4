"""Properties of token trees that follow from `parents` alone. A chain is a tree of width one.

This module is pure. Parents come before their children, and -1 is the root, which is not a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def chain(length: int) -> tuple[int, ...]:
    """Return the parents of a chain of nodes."""
    return tuple(range(-1, length - 1))


def is_chain(parents: Sequence[int]) -> bool:
    """Tell whether the tree is a chain, in which each node is the child of the node before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def problem(parents: Sequence[int]) -> str | None:
    """Return why a list is not the parents of a tree in topological order, or None if it is."""
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            return f"of node {node} is {parent}, not in -1..{node - 1}"
    return None


def depths(parents: Sequence[int]) -> list[int]:
    """Return each node's depth; the root's children have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return lists of children in order: [0] has those of the root, [n + 1] those of node n."""
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        result[parent + 1].append(node)
    return result


def hang(length: int, parents: Sequence[int]) -> tuple[int, ...]:
    """Return the parents of a tree that begins with a chain of `length` nodes. The given tree hangs
    below the last node of the chain.
    """
    return chain(length) + tuple(length + parent for parent in parents)


def trunk(parents: Sequence[int]) -> int:
    """Return how many leading nodes form a chain from the root. The chain is the principal path if
    the likeliest child comes first.
    """
    return next((node for node, parent in enumerate(parents) if parent != node - 1), len(parents))


def path(parents: Sequence[int], node: int) -> list[int]:
    """Return the nodes on the path from the root down to a node, without the root."""
    result = []
    while node >= 0:
        result.append(node)
        node = parents[node]
    return result[::-1]


def runs(parents: Sequence[int], first: int) -> list[range]:
    """Return the nodes from `first` on as ranges, cut wherever a node is not the child of the node
    before it.
    """
    starts = [node for node in range(first + 1, len(parents)) if parents[node] != node - 1]
    return [range(*pair) for pair in pairwise([first, *starts, len(parents)])]
