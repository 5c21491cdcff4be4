"""A candidate generator for transformers' assisted generation, whose assistant is a drafter of a
running Tandem.

The generator asks for candidates and makes logits for them. Transformers' own loop or a verifier
decides which candidates are accepted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from examples.talk import Talk
from tandem.protos.types import (
    MAX_LEVELS,
    NO_DRAFT,
    Draft,
    DraftShape,
    ModelDescription,
    Rule,
    SamplingParams,
    Schedule,
)

NUM_ASSISTANT_TOKENS = 20  # the defaults of transformers
CONFIDENCE_THRESHOLD = 0.4


class TandemCandidateGenerator(CandidateGenerator):
    """Does what transformers' AssistedCandidateGenerator does, with a drafter instead of a local
    model.

    The object belongs to the event loop that runs when the object is made. Code on that loop calls
    `propose`, and transformers calls `get_candidates` in another thread.
    """

    def __init__(
        self,
        talk: Talk,
        assistant: ModelDescription,
        max_length: int,
        schedule: Schedule = Schedule.CONSTANT,
        num_assistant_tokens: int = NUM_ASSISTANT_TOKENS,
        confidence_threshold: float = CONFIDENCE_THRESHOLD,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.draft = NO_DRAFT
        self.num_assistant_tokens = num_assistant_tokens
        # A drawn draft has the distributions it was drawn from, which rejection sampling needs. A
        # greedy draft needs none: the likeliest token is certain to be proposed.
        rule = Rule.REJECT if temperature else Rule.MATCH
        self.sampling = SamplingParams(temperature=temperature, seed=seed, rule=rule)
        self._talk = talk
        self._assistant = assistant
        self._max_length = max_length
        self._schedule = schedule
        self._confidence = confidence_threshold
        self._loop = asyncio.get_running_loop()

    def get_candidates(  # type: ignore[override]  # None without candidates, as in transformers
        self, input_ids: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return `input_ids`, [1, T], with k candidates behind them, [1, T + k], and the logits
        that the candidates come from, [1, k, vocab]. Transformers calls this method in another
        thread.
        """
        proposal = self.propose(input_ids)
        return asyncio.run_coroutine_threadsafe(proposal, self._loop).result()

    async def propose(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what `get_candidates` returns, on the event loop. Raises a TandemError."""
        self._talk.tokens = input_ids[0].tolist()
        # The model adds one token behind the draft, and a drafter limits the length of drafts.
        room = self._max_length - input_ids.shape[1] - 1
        levels = min(self.num_assistant_tokens, room, MAX_LEVELS)
        self.draft = NO_DRAFT
        if levels > 0:
            shape = DraftShape(levels, 1, levels, confidence=self._confidence)
            self.draft = self._ended(await self._talk.propose(shape, self.sampling))
        if not self.draft.tokens:
            return input_ids, None
        candidates = torch.tensor([self.draft.tokens])
        return torch.cat([input_ids, candidates], dim=1), self._logits()

    def update_candidate_strategy(
        self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int
    ) -> None:
        """Adapt the length of drafts. Transformers calls this method after every round. `scores`,
        [1, k + 1, vocab], are the model's.
        """
        self.adapt(len(scores[0]) - 1, int(num_matches))

    def adapt(self, candidate_length: int, num_matches: int) -> None:
        """Make the next draft two tokens longer if this draft matched as a whole, or one token
        shorter if it did not. Only the schedule HEURISTIC adapts.
        """
        if self._schedule is not Schedule.HEURISTIC:
            return
        if num_matches == candidate_length:
            self.num_assistant_tokens += 2
        else:
            self.num_assistant_tokens = max(1, self.num_assistant_tokens - 1)

    def _ended(self, draft: Draft) -> Draft:
        """Cut a draft after its first end token. An assistant model stops at an end token, but a
        drafter does not.
        """
        ends = self._assistant.end_token_ids
        count = next((n + 1 for n, t in enumerate(draft.tokens) if t in ends), len(draft))
        return Draft(draft.tokens[:count], draft.parents[:count], draft.distributions[: count + 1])

    def _logits(self) -> torch.Tensor:
        """Return logits, [1, k, vocab], whose softmax is the distribution that each candidate was
        drawn from: the logarithms of the normalised weights, and minus infinity for all tokens that
        could not be drawn.

        Transformers' rejection sampling needs exactly these logits. These logits are not the scores
        of the draft model, which never leave the drafter. At temperature 0 the softmax of these
        logits is one-hot.
        """
        logits = torch.full((1, len(self.draft), self._assistant.vocab_size), -torch.inf)
        for place, token in enumerate(self.draft.tokens):
            logits[0, place, token] = 0.0
        for place, drawn in enumerate(self.draft.distributions[:-1]):
            weights = torch.tensor(drawn.weights, dtype=torch.float64)
            logits[0, place, list(drawn.tokens)] = (weights / weights.sum()).log().float()
        return logits
