"""One request's answer as it grows: text, figures and times."""

from __future__ import annotations

import time

from orchestrator.frontend.text import TextStream
from orchestrator.metrics import FrontMetrics, Tally
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2


class Answer:
    """Takes steps and makes chunks, which leave out the `known` first tokens that the client has
    already.
    """

    def __init__(
        self,
        run: rounds_pb2.RunRequest,
        stream: TextStream,
        seed: int,
        metrics: FrontMetrics,
        known: int,
    ) -> None:
        self.finished = False
        self._named = False  # whether the client knows how to continue
        self._known = known
        self._run, self._stream, self._seed, self._metrics = run, stream, seed, metrics
        self._prompt_tokens = len(run.prompt)
        self._tally = Tally(wanted=run.shape.levels > 0)
        self._tokens: list[int] = []
        self._logprobs: list[api.TokenLogprobs] = []
        self._end = rounds_pb2.RunResponse()
        self._arrived = self._began = self._last = time.monotonic()
        self._first: float | None = None
        self._reused = 0

    def started(self) -> None:
        """The request got its place."""
        self._began = time.monotonic()
        self._metrics.prompt_tokens.inc(self._prompt_tokens)
        self._metrics.queue.observe(self._began - self._arrived)

    def add(self, step: rounds_pb2.RunResponse) -> api.Chunk:
        """Take one step; the chunk it makes ends at a stop string."""
        old, fresh = step.tokens[: self._known], step.tokens[self._known :]
        _, used_old = self._stream.push(old)
        text, used_fresh = self._stream.push(fresh)
        self._known -= used_old
        del step.tokens[used_old + used_fresh :]
        del step.logprobs[used_old + used_fresh :]
        step.accepted = min(step.accepted, len(step.tokens))
        self._end = step
        if step.finish_reason or self._stream.matched is not None:
            self.finished = True
            text += self._stream.finish()
        first = not self._tokens
        if first:
            self._reused = step.reused
        self._tally.add(step)
        self._metrics.add(step, self._tally.wanted, first)
        self._tokens += step.tokens
        self._logprobs += step.logprobs
        self._clock()
        chunk = api.Chunk(
            text=text,
            token_ids=fresh[:used_fresh],
            completion_tokens=len(self._tokens),
            logprobs=step.logprobs[used_old:],
        )
        if used_fresh and not self._named:
            self._named = True
            chunk.request_id, chunk.seed = self._run.request_id, self._seed
        return chunk

    def complete(self) -> api.GenerateResponse:
        """The whole answer."""
        reason = (
            api.FINISH_REASON_STOP if self._stream.matched is not None else self._end.finish_reason
        )
        now, first = self._last, self._first or self._last
        self._metrics.total.observe(now - self._arrived)
        if len(self._tokens) > 1:
            self._metrics.per_token.observe((now - first) / (len(self._tokens) - 1))
        self._metrics.finished.labels(
            api.FinishReason.Name(reason).rpartition("_")[2].lower()
        ).inc()
        response = api.GenerateResponse(
            request_id=self._run.request_id,
            text=self._stream.text,
            token_ids=self._tokens,
            finish_reason=reason,
            usage=api.Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(self._tokens),
                cached_tokens=self._reused,
            ),
            timing=api.Timing(
                queue_seconds=self._began - self._arrived,
                time_to_first_token_seconds=first - self._arrived,
                total_seconds=now - self._arrived,
            ),
            speculation=self._tally.summary(self._run.sampling.rule),
            seed=self._seed,
            logprobs=self._logprobs,
        )
        if self._stream.matched is not None:
            response.matched_text = self._stream.matched
        elif self._end.HasField("matched_token_id"):
            response.matched_token_id = self._end.matched_token_id
        return response

    def _clock(self) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._metrics.first_token.observe(now - self._arrived)
        else:
            self._metrics.gap.observe(now - self._last)
        self._last = now
