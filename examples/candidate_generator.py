"""A candidate generator for transformers' assisted generation that gets its candidates from a
running Tandem drafter.

The generator returns candidates and the logits of their distributions. Transformers' own loop or a
verifier decides which candidates are accepted.
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

NUM_ASSISTANT_TOKENS = 20  # this constant and the next one are transformers' defaults
CONFIDENCE_THRESHOLD = 0.4


class TandemCandidateGenerator(CandidateGenerator):
    """Works like transformers' AssistedCandidateGenerator, with a drafter instead of a local model.

    Create the object while an event loop runs. Code that runs on this event loop must call the
    coroutine `propose`. Transformers must run in another thread, because the method that it calls,
    `get_candidates`, waits for this event loop.
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
        # Rejection sampling needs the distributions from which a draft was drawn, and the rule
        # REJECT provides them. A greedy draft needs none, because it is not random.
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
        """Return `input_ids`, [1, T], followed by k candidates, [1, T + k], and the logits of the
        distributions from which the candidates were drawn, [1, k, vocab]. Transformers calls this
        method, in a thread other than that of the event loop.
        """
        proposal = self.propose(input_ids)
        return asyncio.run_coroutine_threadsafe(proposal, self._loop).result()

    async def propose(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Do the same as `get_candidates`, as a coroutine on the event loop. Raises a TandemError
        if the call to the drafter fails.
        """
        self._talk.tokens = input_ids[0].tolist()
        # Leave room for the token that the model adds after the draft, and respect the maximum
        # length of a drafter's drafts.
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
        """Adapt the draft length to the number of accepted candidates. Transformers calls this
        method after every round. `scores`, [1, k + 1, vocab], are the target model's logits.
        """
        self.adapt(len(scores[0]) - 1, int(num_matches))

    def adapt(self, candidate_length: int, num_matches: int) -> None:
        """Make the next draft two tokens longer if all candidates were accepted, otherwise one
        token shorter. Only the schedule HEURISTIC changes the draft length.
        """
        if self._schedule is not Schedule.HEURISTIC:
            return
        if num_matches == candidate_length:
            self.num_assistant_tokens += 2
        else:
            self.num_assistant_tokens = max(1, self.num_assistant_tokens - 1)

    def _ended(self, draft: Draft) -> Draft:
        """Cut a draft after its first end token, as transformers does. A drafter may continue
        drafting after an end token.
        """
        ends = self._assistant.end_token_ids
        count = next((n + 1 for n, t in enumerate(draft.tokens) if t in ends), len(draft))
        return Draft(draft.tokens[:count], draft.parents[:count], draft.distributions[: count + 1])

    def _logits(self) -> torch.Tensor:
        """Return logits, [1, k, vocab], whose softmax is the distribution from which each candidate
        was drawn.

        The logits are the logarithms of the normalised weights, and minus infinity for all tokens
        that could not be drawn. Transformers' rejection sampling needs the logits of these
        distributions, not the draft model's own logits. The drafter does not send its draft model's
        own logits. At temperature 0 the softmax of the returned logits is one-hot.
        """
        logits = torch.full((1, len(self.draft), self._assistant.vocab_size), -torch.inf)
        for place, token in enumerate(self.draft.tokens):
            logits[0, place, token] = 0.0
        for place, drawn in enumerate(self.draft.distributions[:-1]):
            weights = torch.tensor(drawn.weights, dtype=torch.float64)
            logits[0, place, list(drawn.tokens)] = (weights / weights.sum()).log().float()
        return logits
