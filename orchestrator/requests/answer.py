"""The answer to one request: its chunks, and the complete answer with its statistics."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tandem.orchestrator.metrics import FrontMetrics, SpeculationStats
from tandem.orchestrator.requests.message import Message, MessageStream, Part
from tandem.orchestrator.requests.text import TextStream
from tandem.orchestrator.rounds.generation import Finish, Generation, RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.streams import Commit
from tandem.protos.types import Rule, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The prompt's text, token ids and log-probabilities, which the answer repeats if the request
    asks for them. The first token has no log-probability.
    """

    text: str = ""  # prompt text that precedes the answer's text
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """The text and tokens that one step adds to an answer."""

    text: str  # never ends with an incomplete character
    token_ids: tuple[int, ...]
    completion_tokens: int  # tokens of the answer so far, including this chunk's
    logprobs: tuple[TokenLogprobs, ...] = ()
    request_id: str = ""  # set in the first chunk; a client needs it to continue the stream
    seed: int | None = None  # set in the first chunk; a client needs it to continue the stream
    parts: tuple[Part, ...] = ()  # the parts that the text adds to the message of a chat
    prompt: PromptPart = PromptPart()  # filled only in the first chunk


@dataclass(frozen=True, slots=True)
class Answer:
    """The complete answer to a request, with times in seconds since the request's arrival."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None
    matched_stop: str | int | None  # the stop string or the stop token that ended the answer
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    speculation: SpeculationStats
    rule: Rule
    seed: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    message: Message | None = None  # the parsed answer, if the prompt was a chat
    prompt: PromptPart = PromptPart()


class AnswerBuilder:
    """Turns the steps of a run into chunks and an answer, and updates the metrics. Chunks do not
    repeat the request's `completion`, which the client already has. `arrived` is the time of the
    request's arrival on the monotonic clock.
    """

    def __init__(
        self,
        request: RunRequest,
        stream: TextStream,
        metrics: FrontMetrics,
        arrived: float,
        message: MessageStream | None = None,
        prompt: PromptPart = PromptPart(),
    ) -> None:
        """`message` parses the answer to a chat; it is None for other requests. Later steps add the
        log-probabilities to `prompt`.
        """
        self._request = request
        self._stream = stream
        self._metrics = metrics
        self._message = message
        self._prompt = prompt
        self._prompt_logprobs: list[TokenLogprobs] = []  # log-probabilities of the prompt so far
        self._first_sent = False  # whether the first chunk was returned
        self._stats = SpeculationStats(requested=request.shape.levels > 0)
        self._logprobs: list[TokenLogprobs] = []
        self._newest = self._received()
        self._tokens = list(self._newest.tokens)
        self._ended = self._newest.finish is not None or stream.matched is not None
        if self._ended:
            self._parts(stream.finish())
        self._arrived = arrived
        self._began = time.monotonic()
        self._last = self._began
        self._first: float | None = None
        self.has_started = False
        self._cached_tokens = 0
        self._generated = 0

    @property
    def finished(self) -> bool:
        """Whether the text and all requested log-probabilities of the prompt are complete."""
        wanted = self._request.prompt_logprobs is not None
        known = 1 + len(self._prompt_logprobs)  # the first token has no log-probability
        return self._ended and not (wanted and known < len(self._request.prompt))

    def started(self) -> RunRequest:
        """Record that the request starts to run, for the first time or again. Returns a request for
        the part of the answer that is still missing.
        """
        self.has_started = True
        if not self._generated:
            self._began = time.monotonic()
            self._metrics.prompt_tokens.inc(len(self._request.prompt))
            self._metrics.queue.observe(self._began - self._arrived)
        return self._left()

    def add(self, step: Step) -> Chunk:
        """Add a step's output to the answer, and return it as a chunk. The chunk's text ends before
        a stop string. If the step has log-probabilities of the prompt, the chunk is empty.
        """
        if step.prompt_logprobs:
            return self._add_prompt_logprobs(step)
        text, used = self._stream.push(step.tokens)
        if used < len(step.tokens):
            step = replace(step, commit=step.commit.committing(step.tokens[:used]))
        if step.finish or self._stream.matched is not None:
            self._ended = True
            text += self._stream.finish()
        self._count(step)
        first = bool(used) and not self._first_sent
        self._first_sent |= first
        return Chunk(
            text,
            step.tokens,
            len(self._tokens),
            step.commit.logprobs,
            self._request.request_id if first else "",
            self._request.sampling.seed if first else None,
            self._parts(text),
            self._prompt_part() if first and not self._request.completion else PromptPart(),
        )

    def complete(self) -> Answer:
        """Return the whole answer, and count it in the metrics."""
        answer = self.so_far()
        self._finished(answer.finish, self._first or self._last, self._last)
        return answer

    def so_far(self) -> Answer:
        """Return the part of the answer that has been generated so far."""
        matched: str | int | None = self._stream.matched
        finish = self._newest.finish if matched is None else Finish.STOP
        now, first = self._last, self._first or self._last
        return Answer(
            request_id=self._request.request_id,
            text=self._stream.text,
            token_ids=tuple(self._tokens),
            finish=finish,
            matched_stop=self._newest.matched_token_id if matched is None else matched,
            prompt_tokens=len(self._request.prompt),
            cached_tokens=self._cached_tokens,
            queue_seconds=self._began - self._arrived,
            first_token_seconds=first - self._arrived,
            total_seconds=now - self._arrived,
            speculation=self._stats,
            rule=self._request.sampling.rule,
            seed=self._request.sampling.seed,
            logprobs=tuple(self._logprobs),
            message=self._message.message if self._message else None,
            prompt=self._prompt_part(),
        )

    def _prompt_part(self) -> PromptPart:
        return replace(self._prompt, logprobs=tuple(self._prompt_logprobs))

    def _left(self) -> RunRequest:
        """Return a request for the rest of the answer. If the text is complete, the request asks
        only for the missing log-probabilities of the prompt.
        """
        request = replace(self._request, prompt_logprobs_from=1 + len(self._prompt_logprobs))
        if self._ended:
            return replace(request, completion=(), max_new_tokens=0)
        return replace(request, completion=tuple(self._tokens))

    def _add_prompt_logprobs(self, step: Step) -> Chunk:
        """Add the log-probabilities of prompt tokens that a step returned."""
        self._prompt_logprobs += step.prompt_logprobs
        self._stats.verified(step)
        self._last = time.monotonic()
        if step.finish and not self._ended:
            self._newest, self._ended = step, True
            self._parts(self._stream.finish())
        return Chunk("", (), len(self._tokens))

    def _parts(self, text: str) -> tuple[Part, ...]:
        """Parse text of a chat's answer, and return the message parts that are now final."""
        if not self._message:
            return ()
        parts = self._message.push(text)
        return (*parts, *self._message.finish()) if self._ended else parts

    def _finished(self, finish: Finish | None, first: float, now: float) -> None:
        """Count a completed request in the metrics."""
        metrics = self._metrics
        metrics.total.observe(now - self._arrived)
        if self._generated > 1:
            metrics.per_token.observe((now - first) / (self._generated - 1))
        metrics.prefill.observe(first - self._began)
        metrics.decode.observe(now - first)
        metrics.inference.observe(now - self._began)
        metrics.prompt_length.observe(len(self._request.prompt))
        metrics.answer_length.observe(self._generated)
        metrics.max_tokens.observe(self._request.max_new_tokens)
        if finish:
            metrics.finished[finish].inc()

    def _received(self) -> Step:
        """Return a step with the tokens that the client has, without those after the end."""
        generation = Generation.of(replace(self._request, completion=()))
        tokens = generation.extend(generation.length, self._request.completion)
        text, used = self._stream.push(tokens)
        if self._message:
            self._message.push(text)
        return Step(
            Commit(0, tokens[:used]),
            finish=generation.finish,
            matched_token_id=generation.matched_token_id,
        )

    def _count(self, step: Step) -> None:
        first = self._first is None
        self._newest = step
        self._stats.add(step)
        self._metrics.add(step, self._stats.requested, first, self._stats.drafter)
        self._tokens += step.tokens
        self._generated += len(step.tokens)
        self._logprobs += step.commit.logprobs
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._cached_tokens = step.commit.reused
            self._metrics.first_token.observe(now - self._arrived)
        else:
            self._metrics.gap.observe(now - self._last)
        self._last = now
