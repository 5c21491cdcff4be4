"""Drafting for a target with another tokenizer: translate its text, draft a chain, translate back.

A job on the model thread drafts the chains of one opening. The engine's session holds the draft
model's tokens. A `TargetText` holds the target's tokens, and positions in messages count the
target's tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch

from tandem.drafter_service.foreign.target_text import TargetTexts
from tandem.drafter_service.foreign.translation import Translation
from tandem.drafter_service.tree.expansion import LOGIT_ERROR
from tandem.drafter_service.tree.pending import PendingTokens, WaitingInput, chain_segment
from tandem.drafter_service.tree.session_text import CommitTokens, new_tokens
from tandem.drafter_service.tree.token_tree import adapted
from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import StepInput
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.types import DraftShape, Rule

# an opening's text is not translated if it is longer than this multiple of the draft model's
# context
MAX_OPENING_CONTEXTS = 8
# tokens drafted beyond the requested number of levels, because a word may take more tokens in the
# draft model's vocabulary than in the target's
EXTRA_TOKENS = 4
# a new chain is drafted once fewer than this many tokens of the last chain are left
MIN_TOKENS_LEFT = 2
# a chain ends at the first token whose chance of being accepted is lower than this. Measured at
# temperature 0: chains of up to 4 tokens take 3.4 draft steps and have 1.47 accepted tokens;
# without this limit, 4.1 steps and 1.53 tokens. Chains of up to 8 tokens take 4.1 steps and have
# 1.64 accepted tokens; without this limit, 8.4 steps and 1.81 tokens
MIN_CHANCE = 0.2


@dataclass(frozen=True, slots=True)
class ChainSetup:
    """The objects that all chain jobs of a drafter share. The draft model's tokenizer knows only
    the first `tokens` ids of the model's vocabulary.
    """

    sessions: Sessions
    translation: Translation
    texts: TargetTexts
    tokens: int


@dataclass(slots=True)
class Chain:
    """A growing chain of the draft model's tokens. For each token, `chances` has the chance that
    the token and all tokens before it are accepted.
    """

    shape: DraftShape
    temperature: float
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, logits: torch.Tensor) -> bool:
        """Append the token with the highest logit, given logits [vocab]. Returns whether to draft
        another token after it.
        """
        likely = (logits / math.hypot(self.temperature, LOGIT_ERROR)).softmax(-1)
        self.tokens.append(int(likely.argmax()))
        self.chances.append(float(likely.max()) * (self.chances[-1] if self.chances else 1.0))
        return self.chances[-1] >= MIN_CHANCE and self._is_confident(logits)

    def logprobs(self, count: int) -> tuple[float, ...]:
        """Return a log-probability for each of the `count` target tokens that the chain translates
        to. Each value is the log-probability that a token is accepted if the token before it is
        accepted.
        """
        length = len(self.tokens)
        ends = [math.log(self.chances[-(-length * n // count) - 1]) for n in range(1, count + 1)]
        return tuple(end - before for end, before in zip(ends, [0.0, *ends], strict=False))

    def _is_confident(self, logits: torch.Tensor) -> bool:
        """Tell whether the probability of the draft model's likeliest token reaches the minimum
        that the draft shape sets.
        """
        least = self.shape.confidence
        warm = logits / (self.temperature or 1.0)
        return not least or float(warm.softmax(-1).max()) >= least


class ChainJob:
    """Background job that sends the proposed chains of one opening. A chain is empty if the
    translated text leaves no space for it in the draft model's context. If the opening's text does
    not fit into the draft model's context, the job sends only empty chains. Raises SessionMiss.
    """

    def __init__(
        self, setup: ChainSetup, opening: Drafting, stream: JobStream[CommitTokens, Proposal]
    ) -> None:
        self._setup = setup
        self._opening = opening
        self._stream = stream
        self._shape = opening.shape
        self._sent = 0  # number of drafted tokens sent so far
        # drafted tokens that the text has not reached yet, in the target's vocabulary
        self._drafted: tuple[int, ...] = ()
        self._session: Session
        self._pending: PendingTokens  # tokens still to be fed to the draft model
        self._text = setup.texts.find(opening.context)
        self._draft_tokens = array("I")
        self._translatable = (
            opening.context.length <= MAX_OPENING_CONTEXTS * setup.sessions.context_length
        )
        self._extend(opening.context.tokens)
        # a text that consists of an incomplete character cannot be translated
        self._translatable = bool(self._draft_tokens) and self._fits

    def run(self) -> Job:
        """Draft a chain after the opening's text, and further chains as commits arrive; raises
        StaleTurn, Busy, Internal.
        """
        context, sessions = self._opening.context, self._setup.sessions
        if not self._fits:
            self._emit(epoch=context.epoch, held=context.base)
            while not self._opening.once:
                yield WaitingInput(self._ready)
            return
        draft_tokens, client = tuple(self._draft_tokens), self._text.client
        inner = replace(context, base=0, tokens=draft_tokens, epoch=0, client=client)
        with sessions.acquire(inner, 0) as self._session:
            self._pending = PendingTokens(sessions, self._session, context)
            segment = chain_segment(self._session, draft_tokens[self._session.length :])
            logits = yield from sessions.feed(inner, segment)
            sessions.keep(self._session, inner, ())
            while True:
                yield from self._draft(logits)
                if self._opening.once:
                    text = replace(self._text, epoch=self._session.epoch)
                    self._setup.texts.keep(context.session_id, text)
                    return
                known = False
                while not known:
                    logits = yield from self._pending.feed(WaitingInput(self._ready))
                    known = self._pending.mark_fed()

    def _ready(self) -> Segment | None:
        """Process the commits that have arrived. Return the segment to feed before the next chain,
        or None if nothing is to be fed now.
        """
        if tokens := new_tokens(self._stream.inbox, len(self._text.tokens)):
            self._extend(tokens)
            accepted = all(a == b for a, b in zip(self._drafted, tokens, strict=False))
            if self._drafted:
                self._shape = adapted(self._shape, accepted)
            self._drafted = self._drafted[len(tokens) :] if accepted and self._fits else ()
            if not self._fits:
                self._emit()
            elif self._opening.lockstep or len(self._drafted) < MIN_TOKENS_LEFT:
                self._rewind()
        if self._stream.paused or not (self._fits and self._pending.pending):
            return None
        return self._pending.next()

    @property
    def _levels(self) -> int:
        return min(self._shape.levels, self._shape.nodes)

    @property
    def _fits(self) -> bool:
        """Whether the draft model's context has space for a chain after the translated text. If the
        opening's text left no space, the value is always False.
        """
        end = len(self._draft_tokens) + self._levels + EXTRA_TOKENS
        return (
            self._translatable and self._levels > 0 and end <= self._setup.sessions.context_length
        )

    def _extend(self, tokens: Sequence[int]) -> None:
        """Append committed target tokens to the text, and translate the text unless it is
        untranslatable.
        """
        if self._translatable:
            self._text, self._draft_tokens = self._text.extended(tokens, self._setup.translation)
        else:
            self._text = replace(self._text, tokens=self._text.tokens + array("I", tokens))

    def _rewind(self) -> None:
        """Truncate the session to the prefix that it shares with the translated text. The newest
        token of the text is always fed again, because its logits are needed.
        """
        held = self._session.common_prefix_with(self._draft_tokens[:-1])
        count = self._setup.sessions.cut(self._session, held)
        self._pending.pending, self._drafted = self._draft_tokens[count:].tolist(), ()

    def _draft(self, logits: torch.Tensor) -> Generator[StepInput, torch.Tensor, None]:
        """Draft a chain and send it. The session keeps the tokens that were fed, because the target
        may accept them.
        """
        session, sessions = self._session, self._setup.sessions
        greedy = self._opening.sampling.rule is Rule.TOP1
        chain = Chain(self._shape, 0.0 if greedy else self._opening.sampling.temperature)
        sessions.reserve(session, len(self._draft_tokens) + self._levels + EXTRA_TOKENS)
        fed = 0
        while chain.add(logits[0, : self._setup.tokens]) and not self._is_complete(chain):
            newest, parents = chain.tokens[-1:], tree.chain(len(chain.tokens))
            segment = Segment(session.table, session.length, tuple(newest), parents, num_logits=1)
            logits = yield from self._pending.feed(segment)
            fed += 1
        sessions.advance(session, chain.tokens[:fed], range(fed), proposed=fed)
        self._drafted = tuple(self._target_tokens(chain)[: self._levels])
        self._emit(chain, session.epoch, len(self._text.tokens))

    def _is_complete(self, chain: Chain) -> bool:
        """Tell whether no further token should be drafted, because the chain is long enough or ends
        with a special token.
        """
        count = len(chain.tokens)
        return (
            count == self._levels + EXTRA_TOKENS
            or self._setup.translation.is_special(chain.tokens[-1])
            or (count >= self._levels and len(self._target_tokens(chain)) >= self._levels)
        )

    def _target_tokens(self, chain: Chain) -> list[int]:
        return self._setup.translation.to_target(self._text.tokens, chain.tokens)

    def _emit(self, chain: Chain | None = None, epoch: int = 0, held: int = 0) -> None:
        """Send the drafted tokens as a proposal."""
        tokens, first = self._drafted, self._sent + 1
        self._sent += len(tokens)
        proposal = Proposal(
            len(self._text.tokens),
            tokens,
            (0, *range(first, self._sent))[: len(tokens)],
            chain.logprobs(len(tokens)) if chain else (),
            first,
            self._opening.context.turn,
        )
        once = self._opening.once
        self._stream.emit(replace(proposal, epoch=epoch, cached_len=held) if once else proposal)
