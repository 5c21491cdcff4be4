"""Stream the answers to requests: admit and run requests, turn tokens into text, and record
metrics.

The module does not depend on gRPC or HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from tokenizers import Tokenizer

from tandem.orchestrator.frontend.admission import Admission
from tandem.orchestrator.frontend.request_log import RequestProgress
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests import checks
from tandem.orchestrator.requests.answer import Answer, AnswerBuilder, Chunk, PromptPart
from tandem.orchestrator.requests.chat import NO_TEMPLATE, ChatTemplate
from tandem.orchestrator.requests.grammars import GrammarTrials
from tandem.orchestrator.requests.message import MessageStream, Reading
from tandem.orchestrator.requests.request import Conversation, Request
from tandem.orchestrator.requests.text import PROMPT_TAIL, TextStream
from tandem.orchestrator.requests.tool_grammars import with_calls
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.errors import InvalidRequest
from tandem.protos.service import tracing
from tandem.protos.service.tracing import Span
from tandem.protos.types import SEEDS
from tandem.protos.wire.codec import SESSION_ID_BYTES

MAX_QUEUED_CHUNKS = 64  # maximum number of chunks buffered for a slow client
STALL_SECONDS = 3.0  # seconds after which a run is closed if its queue stays full
IDLE_SECONDS = 0.25  # seconds without a chunk after which None is yielded

Prepared: TypeAlias = tuple[RunRequest, AnswerBuilder]  # a run, and the builder of its answer


class Runner(Protocol):
    """Interface of `links.relays.Relays`, which runs requests."""

    def run(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        """Yield a request's steps until its generation ends. Raises a TandemError on failure."""


class Answers:
    """Generates the answers to all requests for one model."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        served: checks.ServedModel,
        metrics: FrontMetrics,
        admission: Admission,
        *,
        chat: ChatTemplate = NO_TEMPLATE,
        grammars: GrammarTrials | None = None,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._served = served
        self._metrics = metrics
        self._chat = chat
        self._grammars = grammars
        self.admission = admission

    async def generate(
        self, request: Request, progress: RequestProgress | None = None
    ) -> AsyncGenerator[Chunk | Answer | None, None]:
        """Yield chunks with the tokens that the client has not received yet, then the complete
        answer. While there is no new chunk, yield None every IDLE_SECONDS. After the request is
        validated, its answer builder is stored in `progress`. Raises a TandemError on failure.
        """
        arrived = time.monotonic()
        checks.check_resumable(request, self._served)
        checks.check_size(request, self._served)
        sampling, request_id = request.sampling, request.request_id or secrets.token_hex(8)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbelow(SEEDS))
        request = replace(request, request_id=request_id, sampling=sampling)
        progress = progress or RequestProgress()
        with tracing.during("generate", request.traceparent, request_id=request_id) as span:
            request = replace(request, traceparent=span.traceparent)
            with self.admission.admitted(request.client_id, request.quota):
                prepared = asyncio.create_task(self._prepared(request, arrived))
                prepared.add_done_callback(partial(_note_answer, progress))
                running = read_ahead(lambda: self._run(prepared, request, span))
                async with aclosing(running) as chunks:
                    async for chunk in chunks:
                        yield chunk
            answer = prepared.result()[1].complete()
            span.part("decode", tokens=len(answer.token_ids))
            progress.complete = True
            yield answer

    async def _run(
        self, prepared: asyncio.Task[Prepared], request: Request, span: Span
    ) -> AsyncGenerator[Chunk, None]:
        """Generate the part of an answer that is still missing. Each run gets a new session,
        because the session of an earlier, closed run may still exist.
        """
        run, answer = await prepared
        if answer.finished:
            return
        cost = len(run.prompt) + run.max_new_tokens
        places = self.admission.place(request.client_id, cost, request.quota, request.subclient_id)
        async with places as place:
            place.used = len(run.prompt)
            span.part("wait", prompt_tokens=len(run.prompt))
            session_id = secrets.token_bytes(SESSION_ID_BYTES)
            run = replace(answer.started(), session_id=session_id)
            async with aclosing(self._runner.run(run)) as steps:
                async for step in steps:
                    chunk = answer.add(step)
                    place.used += len(step.tokens)
                    if chunk.token_ids:
                        yield chunk
                    if answer.finished:
                        break

    async def _prepared(self, request: Request, arrived: float) -> Prepared:
        """Add the grammar that a request's tools require, test it, and prepare decoding."""
        own = request.sampling.grammar
        request = with_calls(request, self._chat, self._served.special_tokens)
        if self._grammars:
            try:
                await self._grammars.check(request.sampling.grammar)
            except InvalidRequest as error:
                if own:
                    raise
                raise InvalidRequest.of("messages.tools", error.violations[0].problem) from None
        return await asyncio.to_thread(self._prepare, request, arrived)

    def _prepare(self, request: Request, arrived: float) -> Prepared:
        """Return the run of a request, and its answer builder with the tokens that the client
        already has. Must run in a worker thread, because tokenising long prompts takes long.
        """
        run, stopping = checks.checked(request, self._served, self._tokenise), request.stopping
        run = replace(run, traceparent=request.traceparent)
        reading = self._reading(request.prompt, run.prompt)
        special, markers = self._served.special_tokens, reading.markers if reading else ()
        visible = {special[marker]: marker for marker in markers if marker in special}
        stream = TextStream(
            self._tokenizer, run.prompt, stopping.stop, stopping.min_new_tokens, visible
        )
        message = MessageStream(reading, run.request_id) if reading else None
        prompt = self._prompt_part(request, run.prompt)
        return run, AnswerBuilder(run, stream, self._metrics, arrived, message, prompt)

    def _prompt_part(self, request: Request, tokens: tuple[int, ...]) -> PromptPart:
        """Return the prompt's text and token ids if the request wants them repeated in the answer.
        With `echo`, the text is the prompt itself or, if the prompt is not a string, its decoded
        tokens.
        """
        text = request.prompt if request.echo else ""
        if not isinstance(text, str):
            text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        shown = request.return_token_ids or request.echo or request.prompt_top_logprobs is not None
        return PromptPart(text, tokens if shown else ())

    def _reading(self, prompt: object, tokens: tuple[int, ...]) -> Reading | None:
        """Return the parser settings for the answer to a chat; None if the prompt is not a chat."""
        if not isinstance(prompt, Conversation):
            return None
        tail = self._tokenizer.decode(tokens[-PROMPT_TAIL:], skip_special_tokens=False)
        return self._chat.reading(prompt, tail)

    async def tokens_of(self, request: Request, special: bool) -> tuple[int, ...]:
        """Tokenise a prompt, even if it leaves no room for an answer in the model's context. Raises
        InvalidRequest, or Busy if too many requests run or wait.
        """
        assert isinstance(request.prompt, str | Conversation)
        checks.check_size(request, self._served)
        with self.admission.admitted(request.client_id, request.quota):
            return await asyncio.to_thread(self._tokenise, request.prompt, special)

    def _tokenise(self, prompt: str | Conversation, special: bool | None = None) -> tuple[int, ...]:
        """Turn a prompt into tokens. Unlike `encode`, `encode_batch_fast` does not hold the GIL.
        `special` says whether to add special tokens. By default, special tokens are added to text
        but not to a chat, whose template already writes them.
        """
        text = self._chat.render(prompt) if isinstance(prompt, Conversation) else prompt
        if problem := checks.too_long(len(text.encode()), self._served):
            raise InvalidRequest.of("messages", problem)
        added = isinstance(prompt, str) if special is None else special
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=added)[0].ids)


def _note_answer(progress: RequestProgress, prepared: asyncio.Task[Prepared]) -> None:
    if not prepared.cancelled() and not prepared.exception():
        progress.answer = prepared.result()[1]


async def read_ahead(
    begin: Callable[[], AsyncGenerator[Chunk, None]],
) -> AsyncGenerator[Chunk | None, None]:
    """Buffer the chunks of a generator in a queue for a reader that may be slow or stop reading.
    Yields None if no chunk arrived for IDLE_SECONDS. If the queue stays full for STALL_SECONDS, the
    generator is closed. Once the reader has emptied half of the queue, `begin` is called again and
    returns a generator of the remaining chunks. Raises any error of the generator.
    """
    queue, added, taken = deque[Chunk](), asyncio.Event(), asyncio.Event()

    async def fewer(limit: int) -> None:
        while len(queue) >= limit:
            taken.clear()
            await taken.wait()

    async def write() -> None:
        while True:
            async with aclosing(begin()) as chunks:
                async for chunk in chunks:
                    queue.append(chunk)
                    added.set()
                    try:
                        async with asyncio.timeout(STALL_SECONDS):
                            await fewer(MAX_QUEUED_CHUNKS)
                    except TimeoutError:
                        break
                else:
                    return
            await fewer(MAX_QUEUED_CHUNKS // 2)

    writer = asyncio.create_task(write())
    writer.add_done_callback(lambda _: added.set())
    try:
        while queue or not writer.done():
            added.clear()
            while queue:
                yield queue.popleft()
                taken.set()
            if not writer.done():
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        await added.wait()
                except TimeoutError:
                    yield None
        writer.result()
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
