"""Computes properties of token trees from `parents`, the parent index of every node. A chain is a
tree of width one.

This module is pure. In `parents`, nodes come before their children, and -1 means the root, which is
not itself a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def chain(length: int) -> tuple[int, ...]:
    """Return the parent index of every node of a chain of `length` nodes."""
    return tuple(range(-1, length - 1))


def is_chain(parents: Sequence[int]) -> bool:
    """Tell whether the tree is a chain, in which each node is the child of the node before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def problem(parents: Sequence[int]) -> str | None:
    """Return why `parents` does not describe a tree in topological order; None if it does."""
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            return f"of node {node} is {parent}, not in -1..{node - 1}"
    return None


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node; children of the root have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the root and of every node: item 0 is for the root, item n + 1 for
    node n.
    """
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        result[parent + 1].append(node)
    return result


def hang(length: int, parents: Sequence[int]) -> tuple[int, ...]:
    """Return the parent index of every node of a tree whose first `length` nodes form a chain, and
    whose other nodes are the tree `parents`, attached to the last node of that chain.
    """
    return chain(length) + tuple(length + parent for parent in parents)


def trunk(parents: Sequence[int]) -> int:
    """Return the number of leading nodes that form a chain from the root. If likelier children come
    first, each node of this chain is the likeliest child of its parent.
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
    """Split the nodes from `first` on into ranges in which each node is the child of the node
    before it.
    """
    starts = [node for node in range(first + 1, len(parents)) if parents[node] != node - 1]
    return [range(*pair) for pair in pairwise([first, *starts, len(parents)])]
