"""The log-probabilities of a prompt through the whole system, as evaluation harnesses request
them.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from transformers import PreTrainedModel

from tandem import AsyncClient
from tandem.benchmarks.options import TOLERANCE
from tandem.v1 import orchestrator_pb2 as api
from tests.http_served import PROMPT, TOKENS, WRITTEN, Door, complete, converse
from tests.system.test_requests import stream
from tests.system.test_same_text import ask

LONG = [6 + 11 * place % 4000 for place in range(150)]

pytestmark = pytest.mark.usefixtures("nothing_left")


def telling(prompt: str | list[int] = LONG, tokens: int = 0, **fields: Any) -> api.GenerateRequest:
    """Return a request for the log-probabilities of a prompt."""
    request = ask(prompt, tokens=tokens)
    request.MergeFrom(api.GenerateRequest(**{"prompt_logprobs": 3} | fields))
    return request


async def test_they_are_the_targets_own_and_the_same_bits_beside_whatever_else_runs(
    door: Door, target: PreTrainedModel
) -> None:
    alone = await door.stub.Generate(telling())
    others = [ask(LONG[:60], tokens=40), ask("A dog", tokens=40), telling(LONG[:99], 30)]
    busy, again, *_ = await asyncio.gather(
        door.stub.Generate(telling(tokens=9, cache_salt="another's")),
        door.stub.Generate(telling(tokens=9)),  # the prompt's prefix is cached
        *map(door.stub.Generate, others),
    )
    assert list(alone.prompt_logprobs) == list(busy.prompt_logprobs) == list(again.prompt_logprobs)
    assert (len(alone.prompt_logprobs), alone.usage.completion_tokens) == (len(LONG) - 1, 0)
    assert alone.finish_reason == api.FINISH_REASON_LENGTH and not alone.text
    assert alone.speculation.num_spec_steps == 0
    plain = await door.stub.Generate(ask(LONG, tokens=9))
    assert busy.text == again.text == plain.text
    with torch.inference_mode():
        scores = target(torch.tensor([LONG])).logits[0].log_softmax(-1)
    for row, token, told in zip(scores, LONG[1:], alone.prompt_logprobs, strict=False):
        assert told.logprob == pytest.approx(float(row[token]), abs=TOLERANCE)
        assert list(told.top_logprobs) == pytest.approx(row.topk(3).values.tolist(), abs=TOLERANCE)
        assert abs(told.rank - 1 - int((row > row[token]).sum())) <= 1


async def test_a_client_that_continues_a_stream_gets_all_of_them(door: Door) -> None:
    request = telling(PROMPT, 12, echo=True, logprobs=1, return_token_ids=True)
    whole = await door.stub.Generate(request)
    assert whole.text.startswith(PROMPT) and len(whole.logprobs) == 12
    assert len(whole.prompt_token_ids) == len(whole.prompt_logprobs) + 1
    for seen in (0, 5, 12):
        rest = stream(request, whole.token_ids[:seen])
        *events, last = [event async for event in door.stub.StreamGenerate(rest)]
        assert list(last.complete.prompt_logprobs) == list(whole.prompt_logprobs)
        assert last.complete.text == whole.text
        text = "".join(event.chunk.text for event in events)
        assert text == whole.text if not seen else whole.text.endswith(text)
    async with AsyncClient(door.address) as client:
        options = {"echo": True, "logprobs": 1, "prompt_logprobs": 3, "return_token_ids": True}
        found = await client.generate(PROMPT, temperature=0, max_new_tokens=12, **options)
    assert (found.text, found.prompt_logprobs) == (whole.text, whole.prompt_logprobs)


async def test_an_echoed_completion_is_that_of_grpc(client: AsyncOpenAI, door: Door) -> None:
    """Evaluation harnesses send several lists of tokens and ask for one more token."""
    prompts = [LONG[:20], LONG[30:47]]
    found = await complete(client, prompt=prompts, echo=True, logprobs=1, max_tokens=1, seed=1234)
    for ids, choice in zip(prompts, found.choices, strict=True):
        answer = await door.stub.Generate(telling(ids, 1, logprobs=1, echo=True))
        told = [*answer.prompt_logprobs, *answer.logprobs]
        expected = [None, *(each.logprob for each in told)]
        assert choice.logprobs.token_logprobs == expected
        assert choice.text == answer.text
        tops = [max(each.values()) for each in choice.logprobs.top_logprobs[1:]]
        assert tops == [each.top_logprobs[0] for each in told]
    asked = {"prompt": LONG[:20], "echo": True, "logprobs": 1, "max_tokens": 1, "stream": True}
    streamed = [chunk.choices[0] async for chunk in await complete(client, **asked)]
    logprobs = [each.logprobs.token_logprobs for each in streamed if each.logprobs]
    assert list(chain(*logprobs)) == found.choices[0].logprobs.token_logprobs
    assert "".join(each.text for each in streamed) == found.choices[0].text


async def test_prompts_are_told_of_where_vllm_does(client: AsyncOpenAI, door: Door) -> None:
    extra = {"prompt_logprobs": 2, "return_token_ids": True}
    (choice,) = (await complete(client, max_tokens=0, extra_body=extra)).choices
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("", [], "length")
    assert len(choice.prompt_logprobs) == len(choice.prompt_token_ids)
    chat = await converse(client, n=2, extra_body=extra)
    answer = await door.stub.Generate(telling(WRITTEN, TOKENS, prompt_logprobs=2))
    assert list(chat.prompt_token_ids) == list(answer.prompt_token_ids)
    pairs = zip(chat.prompt_logprobs[1:], chat.prompt_token_ids[1:], strict=True)
    told = [each[str(token)]["logprob"] for each, token in pairs]
    assert told == [each.logprob for each in answer.prompt_logprobs]
    assert [list(each.token_ids) for each in chat.choices] == [list(answer.token_ids)] * 2
    (echoed,) = (await complete(client, max_tokens=0, echo=True)).choices
    assert echoed.text == PROMPT
    chunks = await converse(client, stream=True, extra_body={"return_token_ids": True})
    first, *others = [chunk async for chunk in chunks]
    assert first.prompt_token_ids == chat.prompt_token_ids
    ids = [each.choices[0].model_extra.get("token_ids", ()) for each in others]
    assert list(chain(*ids)) == list(answer.token_ids)
