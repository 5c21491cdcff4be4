"""Answers of requests whose text is given: what a retry sends again, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.orchestrator.frontend import answers as answers_module
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.checks import ServedModel
from tandem.orchestrator.requests.request import Request, Sampling, Speculation, Stopping
from tandem.orchestrator.requests.text import TextStream, load_tokenizer
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.errors import Busy, InvalidRequest
from tandem.protos.types import DraftShape, ModelDescription, Rule
from tests.services.runner import Runner, step
from tests.waiting import LIMIT, until

TOKENIZER: Any = load_tokenizer(models.TARGET)
TEXT = "The 世界 was 😀 and the end of it. More came then"
END = 0
SCRIPT = [*TOKENIZER.encode(TEXT).ids, END, 9]  # nothing after the end may be sent


class Writer(Runner):
    """A runner that continues the script after the completion, two tokens a step, to the end or the
    limit.
    """

    async def steps(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        script = SCRIPT[: request.max_new_tokens]
        for at in range(len(request.completion), len(script), 2):
            tokens, finish = script[at : at + 2], None
            if END in tokens:
                tokens, finish = tokens[: tokens.index(END) + 1], Finish.STOP
            elif at + 2 >= len(script):
                finish = Finish.LENGTH
            matched = END if finish is Finish.STOP else None
            yield step(*tokens, finish=finish, matched_token_id=matched)
            await asyncio.sleep(0)


@dataclass
class Front:
    """The answers, and the runner that writes them."""

    answers: Answers
    writer: Writer

    async def ask(self, request: Request) -> tuple[list[Chunk], Answer]:
        """Return the chunks, and the complete answer."""
        events = [event async for event in self.answers.generate(request)]
        assert isinstance(events[-1], Answer)
        return [event for event in events if isinstance(event, Chunk)], events[-1]


@asynccontextmanager
async def front(
    exactness: str = "exact", waiting: int = 8, context: int = 512
) -> AsyncIterator[Front]:
    vocabulary = TOKENIZER.get_vocab_size()
    model = ModelDescription("tiny", "", vocabulary, context, (END,), "", "", exactness=exactness)
    served = ServedModel(model, DraftShape(4), context * 16, {})
    metrics, writer = FrontMetrics(CollectorRegistry()), Writer()
    admission = Admission(Limits(1, waiting), Limits(1, 8, "_per_client"), metrics)
    yield Front(Answers(writer, TOKENIZER, served, metrics, admission), writer)


def asked(received: Sequence[int] = (), seed: int | None = 3, **stopping: Any) -> Request:
    return Request(
        "Once",
        sampling=Sampling(seed=seed),
        stopping=Stopping(**stopping),
        received=tuple(received),
    )


@pytest.mark.parametrize(
    "stopping",
    [{}, {"stop": ("the end",)}, {"max_new_tokens": 9}, {"stop": ("never seen",)}],
    ids=["to-the-end", "stop-string", "limit", "held-back"],
)
async def test_a_continued_stream_decodes_only_what_is_missing(stopping: dict[str, Any]) -> None:
    """The test covers every cut, also within a character or a stop string."""
    async with front() as served:
        chunks, whole = await served.ask(asked(**stopping))
        tokens = whole.token_ids
        for cut in range(len(tokens) + 1):
            served.writer.asked.clear()
            rest, answer = await served.ask(asked(tokens[:cut], **stopping))
            missing = cut < len(tokens)
            assert served.writer.asked == [list(tokens[:cut])] * missing
            assert tuple(t for chunk in rest for t in chunk.token_ids) == tokens[cut:]
            assert whole.text.endswith("".join(chunk.text for chunk in rest))
            assert [c.completion_tokens for c in rest[-1:]] == [len(tokens)] * missing
            assert (answer.text, answer.token_ids) == (whole.text, tokens)
            assert (answer.finish, answer.matched_stop) == (whole.finish, whole.matched_stop)
            assert answer.prompt_tokens == whole.prompt_tokens
        seen, text = 0, ""
        for chunk in chunks:  # acts as a client that loses its stream after every chunk
            rest, _ = await served.ask(asked(tokens[:seen], **stopping))
            text, seen = text + rest[0].text, rest[0].completion_tokens
            assert rest[0].token_ids == chunk.token_ids
        assert text == whole.text


@pytest.mark.parametrize("rule", Rule)
async def test_a_stream_of_an_inexact_target_is_continued(rule: Rule) -> None:
    async with front("exact unavailable: switched off") as served:
        _, whole = await served.ask(asked())
        request = Request(
            "Once",
            sampling=Sampling(seed=3),
            speculation=Speculation(rule=rule),
            received=whole.token_ids[:7],
        )
        _, answer = await served.ask(request)
        assert (answer.text, answer.finish) == (whole.text, Finish.STOP)
        assert served.writer.asked[-1] == list(whole.token_ids[:7])


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (asked([1, TOKENIZER.get_vocab_size()]), "received has token"),
        (asked([5, 6, 7], max_new_tokens=2), "received has 3 tokens, above max_new_tokens, 2"),
        (asked([5], seed=None), "received needs sampling.seed, or temperature 0"),
        (Request("a", resume_from=2, received=(5,), sampling=Sampling(seed=1)), "received has 1"),
    ],
)
async def test_received_tokens_that_cannot_be_are_refused(request_: Request, problem: str) -> None:
    async with front() as served:
        with pytest.raises(InvalidRequest, match=problem):
            await served.ask(request_)
        assert served.writer.asked == []


async def test_a_long_prompt_does_not_hold_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is tokenised in a thread, and as a batch: `encode` of one text would hold the
    GIL.
    """
    begun, go = threading.Event(), threading.Event()

    class Slow:
        """A tokenizer that does not return before the event loop has done something else."""

        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> Any:
            begun.set()
            assert go.wait(LIMIT)
            return TOKENIZER.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(answers_module, "TextStream", lambda _, *more: TextStream(TOKENIZER, *more))
    async with front() as served:
        served.answers._tokenizer = Slow()  # type: ignore[assignment]
        answer = asyncio.create_task(served.ask(asked()))
        await until(begun.is_set)
        go.set()
        assert (await answer)[1].finish is Finish.STOP


async def test_a_refused_request_was_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def tokenise(answers: Answers, text: str) -> tuple[int, ...]:
        lengths.append(len(text))
        return (5,)

    monkeypatch.setattr(Answers, "_tokenise", tokenise)
    # keeps the writer from writing all chunks at once
    monkeypatch.setattr(answers_module, "MAX_QUEUED_CHUNKS", 1)
    async with front(waiting=1) as served:
        admission = served.answers.admission
        running = served.answers.generate(asked())
        await anext(running)
        waiting = asyncio.create_task(served.ask(asked()))
        await until(lambda: (admission.running, admission.waiting, len(lengths)) == (1, 1, 2))
        with pytest.raises(Busy, match="2 requests run or wait: max_running is 1"):
            await served.ask(asked())
        with pytest.raises(InvalidRequest, match="text has 10000 bytes"):
            await served.ask(Request("x" * 10_000, sampling=Sampling(seed=3)))
        assert len(lengths) == 2
        await running.aclose()
        await waiting
        assert (admission.running, admission.waiting) == (0, 0)


async def test_mute_readers_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readers continue from where they were when they read again."""
    monkeypatch.setattr(answers_module, "MAX_QUEUED_CHUNKS", 4)
    monkeypatch.setattr(answers_module, "STALL_SECONDS", 0.05)
    async with front() as served:
        _, whole = await served.ask(asked())
        mute = served.answers.generate(asked())
        events = [await anext(mute)]
        assert served.answers.admission.running == 1
        await served.ask(asked())
        assert served.answers.admission.running == 0
        events += [event async for event in mute]
        *chunks, answer = events
        assert isinstance(answer, Answer)
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        assert tokens == list(whole.token_ids)
        assert (answer.text, answer.finish) == (whole.text, whole.finish)
        written = len(served.writer.asked[-1])
        assert 8 <= written < len(tokens), "the rest alone was written by the last run"
        assert served.answers.admission.waiting == 0


async def test_a_mute_reader_that_leaves_leaves_nothing() -> None:
    async with front() as served:
        mute = served.answers.generate(asked())
        await anext(mute)
        await mute.aclose()
        admission = served.answers.admission
        assert (admission.running, admission.waiting) == (0, 0)
