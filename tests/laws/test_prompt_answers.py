"""What an answer contains of its prompt: all of it after any interruption, in shapes that clients
know.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.orchestrator.http.replies import Head, Reply
from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.answer import AnswerBuilder, PromptPart
from tandem.orchestrator.requests.request import Request
from tandem.orchestrator.requests.text import TextStream, load_tokenizer
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.streams import Commit
from tandem.protos.types import SamplingParams, TokenLogprobs
from tests.laws.test_text import with_sentence_pieces

TOKENIZER: Any = load_tokenizer(models.TARGET)
TEXT = "The café 世界"
PROMPT = tuple(TOKENIZER.encode(TEXT).ids)
TOLD = tuple(TokenLogprobs(-float(place), ((7, -0.5), (8, -1.5)), 3) for place in PROMPT[1:])


def builder(most: int = 4, completion: tuple[int, ...] = (), stop: int = -1) -> AnswerBuilder:
    request = RunRequest("id", b"s", PROMPT, SamplingParams(), most, frozenset({stop}))
    run = replace(request, completion=completion, prompt_logprobs=2)
    stream, metrics = TextStream(TOKENIZER, PROMPT), FrontMetrics(CollectorRegistry())
    return AnswerBuilder(run, stream, metrics, time.monotonic(), prompt=PromptPart(TEXT, PROMPT))


def of_prompt(count: int, start: int = 0, **fields: Any) -> Step:
    return Step(Commit(1 + start, ()), prompt_logprobs=TOLD[start : start + count], **fields)


def test_a_run_that_is_begun_again_asks_for_what_has_not_been_told() -> None:
    answer = builder()
    assert answer.started().prompt_logprobs_from == 1
    assert answer.add(of_prompt(3)).token_ids == ()
    assert (answer.started().prompt_logprobs_from, answer.finished) == (4, False)
    answer.add(of_prompt(99, 3))
    chunk = answer.add(Step(Commit(len(PROMPT), (PROMPT[0],))))
    assert (chunk.prompt.text, chunk.prompt.logprobs) == (TEXT, TOLD)
    again = answer.started()
    assert (again.completion, again.prompt_logprobs_from) == ((PROMPT[0],), len(PROMPT))
    more = answer.add(Step(Commit(len(PROMPT) + 1, (PROMPT[0],)), finish=Finish.LENGTH))
    assert more.prompt == PromptPart() and answer.finished
    assert answer.complete().prompt == PromptPart(TEXT, PROMPT, TOLD)


def test_a_prompt_alone_is_all_there_is_with_no_tokens_wanted() -> None:
    answer = builder(most=0)
    assert answer.started().max_new_tokens == 0 and not answer.finished
    answer.add(of_prompt(99, finish=Finish.LENGTH))
    whole = answer.complete()
    assert (whole.text, whole.token_ids, whole.finish) == ("", (), Finish.LENGTH)
    assert answer.finished and whole.prompt.logprobs == TOLD
    assert whole.speculation.steps == 0, "nothing special is counted"


def test_a_client_that_has_the_whole_text_still_gets_what_is_told_of_the_prompt() -> None:
    for stop, finish in ((-1, Finish.LENGTH), (PROMPT[1], Finish.STOP)):
        answer = builder(2, PROMPT[:2], stop)
        run = answer.started()
        assert not answer.finished and len(run.completion) == run.max_new_tokens
        assert run.prompt_logprobs_from == 1, "nothing else is left to be done"
        answer.add(of_prompt(99, finish=Finish.LENGTH))
        whole = answer.complete()
        assert answer.finished and whole.token_ids == PROMPT[:2]
        assert (whole.finish, whole.prompt.logprobs) == (finish, TOLD)


def test_a_text_that_is_continued_does_not_begin_with_the_prompt_again() -> None:
    answer = builder(completion=PROMPT[:1])
    answer.add(of_prompt(99))
    assert answer.add(Step(Commit(len(PROMPT) + 1, (PROMPT[0],)))).prompt == PromptPart()


def reply(chat: bool = False, **asked: Any) -> Reply:
    return Reply(Head("id", "m", 0, chat), 0, Request(**asked), TokenTexts(TOKENIZER))


def finished(most: int = 1) -> AnswerBuilder:
    answer = builder(most)
    answer.add(of_prompt(99, finish=None if most else Finish.LENGTH))
    if most:
        told = (TokenLogprobs(-0.25, ((PROMPT[0], -0.25),)),)
        answer.add(Step(Commit(len(PROMPT), PROMPT[:1], logprobs=told), finish=Finish.LENGTH))
    return answer


@pytest.mark.parametrize("top", [0, 1])
def test_an_echoed_completion_has_openais_shape(top: int) -> None:
    answer = finished().complete()
    choice = reply(echo=True, logprobs=top).whole(answer)
    found = choice["logprobs"]
    assert choice["text"] == answer.prompt.text + answer.text
    assert found["token_logprobs"] == [None, *(each.logprob for each in TOLD), -0.25]
    assert found["top_logprobs"][0] is None
    assert [len(each) for each in found["top_logprobs"][1:-1]] == [top] * len(TOLD)
    assert [len(each) for each in found.values()] == [1 + len(PROMPT)] * 4
    assert (found["text_offset"][0], found["text_offset"][-1]) == (0, len(TEXT))
    assert "token_ids" not in choice and "prompt_logprobs" not in choice


def test_the_pieces_of_an_echoed_stream_add_up_to_the_whole() -> None:
    answer, streamed = finished().complete(), reply(echo=True, logprobs=1, return_token_ids=True)
    whole = reply(echo=True, logprobs=1, return_token_ids=True).whole(answer)
    builder_ = builder(1)
    builder_.add(of_prompt(99))
    chunk = builder_.add(
        Step(Commit(len(PROMPT), PROMPT[:1], logprobs=answer.logprobs), finish=Finish.LENGTH)
    )
    pieces = [*streamed.begun(chunk.prompt), *streamed.chunk(chunk), *streamed.ended(answer)]
    choices = [piece["choices"][0] for piece in pieces]
    assert "".join(each["text"] for each in choices) == whole["text"]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"] == PROMPT
    ids = chain(*(each.get("token_ids", ()) for each in choices))
    assert tuple(ids) == whole["token_ids"]
    for name, values in whole["logprobs"].items():
        parts = [each["logprobs"][name] for each in choices if each["logprobs"]]
        assert list(chain(*parts)) == values


def test_prompt_logprobs_have_vllms_shape_and_place() -> None:
    answer = finished(0).complete()
    found = reply(prompt_logprobs=2, return_token_ids=True).whole(answer)
    assert (found["token_ids"], found["prompt_token_ids"]) == ((), PROMPT)
    first, second, *_ = found["prompt_logprobs"]
    assert first is None and len(found["prompt_logprobs"]) == len(PROMPT)
    own, *top = second.items()
    assert own[0] == str(PROMPT[1])
    assert own[1].items() >= {"logprob": TOLD[0].logprob, "rank": 3}.items()
    assert [(each, entry["rank"]) for each, entry in top] == [("7", 1), ("8", 2)]
    chat = reply(chat=True, prompt_logprobs=2, return_token_ids=True)
    assert "prompt_logprobs" not in chat.whole(answer)
    assert chat.extras(answer)["prompt_logprobs"] == found["prompt_logprobs"]
    (begun,) = chat.begun(answer.prompt)
    assert begun["prompt_token_ids"] == PROMPT


def test_offsets_are_those_of_the_text_where_it_has_not_all_that_tokens_are() -> None:
    """The tokenizer puts a token before every text, and decoding removes a space."""
    tokenizer = with_sentence_pieces()
    ids = tuple(map(tokenizer.token_to_id, ["▁was", "▁was", "x"]))
    texts = TokenTexts(tokenizer)
    told = (TokenLogprobs(-1.0),) * 2
    asked = Request(echo=True, logprobs=0)
    part = PromptPart("was wasx", ids, told)
    (piece,) = Reply(Head("id", "m", 0, False), 0, asked, texts).begun(part)
    assert piece["choices"][0]["logprobs"]["text_offset"] == [0, 3, 7]
    begun = replace(part, text="wasx", token_ids=(ids[0], *ids[1:]))
    (piece,) = Reply(Head("id", "m", 0, False), 0, asked, texts).begun(begun)
    assert piece["choices"][0]["logprobs"]["text_offset"] == [0, 0, 3]
