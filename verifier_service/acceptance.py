"""Which draft tokens stand: the acceptance walk.

Pure: the target's choices come in as a function, nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protos import tree


def match(
    tokens: Sequence[int], parents: Sequence[int], choice: Callable[[int], int]
) -> tuple[tuple[int, ...], int]:
    """Follow the target's own choices down the tree: (accepted nodes as a path from the root, next
    token).

    `choice(node)` is the token that the target draws behind a node, -1 being the root; it is asked
    only at nodes that are reached. What is emitted is always the target's draw, so no draft can
    change the text.
    """
    children = tree.children(parents)
    path: list[int] = []
    node = -1
    while True:
        token = choice(node)
        following = next((child for child in children[node + 1] if tokens[child] == token), None)
        if following is None:
            return tuple(path), token
        path.append(following)
        node = following
