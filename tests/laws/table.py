"""A model of seven tokens whose next token is a fixed function of the last two, and services that
hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from tandem.protos import tree
from tandem.protos.errors import SessionMiss, StaleTurn, TandemError
from tandem.protos.types import Context, Draft, DraftShape, Proposal, SamplingParams, Verdict
from tandem.verifier_service.acceptance import Decision, match, walk

Tokens = tuple[int, ...]
Guess = Callable[[Tokens], int]
VOCABULARY = 7
EPOCH = 9


def next_token(tokens: Tokens) -> int:
    """What follows."""
    return (3 * tokens[-1] + 5 * tokens[-2] + tokens[-1] * tokens[-2] + 1) % VOCABULARY


def continuation(prompt: Tokens, count: int) -> Tokens:
    """Target-only decoding: what every text is compared with."""
    tokens = prompt
    for _ in range(count):
        tokens += (next_token(tokens),)
    return tokens[len(prompt) :]


class Mirror:
    """A session-keeping service: loses its sessions, or fails, as the fate of each call says (None:
    all is well).
    """

    def __init__(self, fates: Iterator[TandemError | None] | None = None) -> None:
        self.contexts: list[Context] = []
        self.closed: list[bytes] = []
        self._fates = fates or repeat(None)
        self._held: dict[bytes, Tokens] = {}
        self._turns: dict[bytes, int] = {}

    async def close(self, session_id: bytes) -> None:
        """Forget the session."""
        self.closed.append(session_id)

    def extend(self, context: Context) -> Tokens:
        """Meet one's fate, then apply the session rule: the committed tokens."""
        self.contexts.append(context)
        assert context.tokens, "the newest token was never fed"
        if (fate := next(self._fates, None)) is not None:
            if isinstance(fate, SessionMiss):
                self._held.clear()
            raise fate
        if context.turn <= self._turns.get(context.session_id, 0):
            raise StaleTurn("old")
        held = self._held.get(context.session_id, ())
        if context.base > len(held) or context.epoch not in (0, EPOCH):
            raise SessionMiss("not held")
        self._turns[context.session_id] = context.turn
        self._held[context.session_id] = held[: context.base] + context.tokens
        return self._held[context.session_id]

    def keep(self, context: Context, more: Tokens) -> int:
        """Hold these tokens too."""
        self._held[context.session_id] += more
        return len(self._held[context.session_id])


class TableVerifier(Mirror):
    """Holds the table."""

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        """The acceptance walk over what it holds, not over what the caller meant."""
        tokens = self.extend(context)

        def choice(node: int) -> int:
            path: Tokens = ()
            while node >= 0:
                path, node = (draft.tokens[node], *path), draft.parents[node]
            return next_token(tokens + path)

        def decide(node: int, children: Sequence[int]) -> Decision:
            return match(draft, children, choice(node))

        path, token = walk(draft.parents, decide)
        held = self.keep(context, tuple(draft.tokens[node] for node in path))
        return Verdict(path, token, held, EPOCH)


class TableDrafter(Mirror):
    """Guesses with a function; its draft is a chain, with a wrong sibling for every node if
    branches allow.
    """

    def __init__(
        self, guess: Guess = next_token, fates: Iterator[TandemError | None] | None = None
    ) -> None:
        super().__init__(fates)
        self.shapes: list[DraftShape] = []
        self._guess = guess

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """Guess on from what it holds; its last token is not fed."""
        self.shapes.append(shape)
        tokens = self.extend(context)
        chain: Tokens = ()
        for _ in range(shape.levels):
            chain += (self._guess(tokens + chain),)
        held = self.keep(context, chain[:-1])
        if shape.branches == 1:
            return Proposal(Draft.chain(chain), held, EPOCH)
        siblings = tuple((token + 1) % VOCABULARY for token in chain)
        parents = tree.chain(len(chain))
        return Proposal(Draft(chain + siblings, parents + parents), held, EPOCH)
