"""The official client finds what it expects of an OpenAI server, and its texts are those of
gRPC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field

from tandem import AsyncClient
from tandem.protos.errors import InvalidRequest
from tests.http_served import CHAT, PROMPT, TOKENS, WRITTEN, Door, complete, converse
from tests.system.test_same_text import ask

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 5, "top_p": 0.9}])
async def test_a_completion_is_that_of_grpc(
    client: AsyncOpenAI, door: Door, options: dict[str, Any]
) -> None:
    found = await complete(client, **options)
    request = ask(PROMPT, tokens=TOKENS)
    for name, value in options.items():
        setattr(request.sampling, name, value)
    answer = await door.stub.Generate(request)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == (answer.text, "length")
    usage, figures = found.usage, answer.speculation
    assert usage.completion_tokens == TOKENS and usage.prompt_tokens == answer.usage.prompt_tokens
    assert usage.total_tokens == usage.completion_tokens + usage.prompt_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    details = usage.completion_tokens_details
    assert 0 <= details.accepted_prediction_tokens < TOKENS and figures.num_spec_steps
    assert details.rejected_prediction_tokens >= 0
    assert (found.object, found.model, found.id[:5]) == ("text_completion", "target", "cmpl-")


async def test_a_stream_adds_up_and_ends_with_usage_if_it_is_asked_for(client: AsyncOpenAI) -> None:
    whole = await complete(client)
    stream = await complete(client, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    *pieces, last = chunks
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
    ends = [chunk.choices[0].finish_reason for chunk in pieces]
    assert ends[-1] == "length" and not any(ends[:-1])
    assert last.choices == [] and last.usage.completion_tokens == TOKENS
    assert not any(chunk.usage for chunk in pieces)
    plain = [chunk async for chunk in await complete(client, stream=True)]
    assert all(chunk.choices and not chunk.usage for chunk in plain)


async def test_choices_and_prompts_are_answered_as_if_each_were_asked_alone(
    client: AsyncOpenAI,
) -> None:
    prompts, options = [PROMPT, "A dog"], {"temperature": 0.8, "n": 3}
    alone = [
        (await complete(client, prompt=prompt, temperature=0.8, seed=5 + place)).choices[0].text
        for prompt in prompts
        for place in range(3)
    ]
    assert len(set(alone)) == 6
    whole = await complete(client, prompt=prompts, seed=5, **options)
    assert [(each.index, each.text) for each in whole.choices] == list(enumerate(alone))
    assert whole.usage.completion_tokens == 6 * TOKENS
    single = await complete(client, prompt=prompts, seed=5, temperature=0.8)
    assert whole.usage.prompt_tokens == single.usage.prompt_tokens
    told, ends = [""] * 6, [0] * 6
    usage = {"include_usage": True}
    stream = await complete(
        client, prompt=prompts, seed=5, stream=True, stream_options=usage, **options
    )
    *pieces, last = [chunk async for chunk in stream]
    for (choice,) in (chunk.choices for chunk in pieces):
        told[choice.index] += choice.text
        ends[choice.index] += choice.finish_reason == "length"
    assert (told, ends) == (alone, [1] * 6)
    assert last.usage.total_tokens == whole.usage.total_tokens
    chat = await converse(client, n=2, temperature=0)
    assert chat.choices[0].message == chat.choices[1].message


async def test_speculation_is_chosen_and_its_figures_are_in_the_answer(client: AsyncOpenAI) -> None:
    whole = await complete(client)
    plain = await complete(client, extra_body={"speculation": {"num_speculative_tokens": 0}})
    assert plain.choices[0].text == whole.choices[0].text
    assert not hasattr(whole, "metrics")
    figures = plain.metrics["speculative_decoding"]
    assert (figures["num_spec_steps"], figures["num_draft_tokens"]) == (TOKENS, 0)
    stream = await complete(client, stream=True, extra_body={"speculation": {"method": "ngram"}})
    *pieces, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in (*pieces, last)) == whole.choices[0].text
    assert last.metrics["speculative_decoding"]["num_spec_steps"] > 0


async def test_a_chat_is_written_by_the_template_and_answered_as_its_text_is(
    client: AsyncOpenAI, door: Door
) -> None:
    found = await converse(client)
    answer = await door.stub.Generate(ask(WRITTEN, tokens=TOKENS))
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", answer.text)
    assert found.usage.prompt_tokens == answer.usage.prompt_tokens
    stream = await converse(client, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert chunks[0].delta.role == "assistant" and chunks[-1].finish_reason == "length"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == answer.text


async def test_grpc_has_the_same_chats(client: AsyncOpenAI, door: Door) -> None:
    request = ask("", tokens=TOKENS)
    for role, content in (("system", "Tell a story."), ("user", "Once upon a time")):
        request.messages.messages.add(role=role, content=content)
    plain = await door.stub.Generate(request)
    request.messages.template_arguments["tone"] = 7
    request.messages.add_generation_prompt = False
    answers = [plain.text, (await door.stub.Generate(request)).text]
    async with AsyncClient(door.address) as grpc_client:
        asked = [{"role": each.role, "content": each.content} for each in request.messages.messages]
        found = await grpc_client.generate(asked, temperature=0, max_new_tokens=TOKENS)
        assert found.text == plain.text
        with pytest.raises(InvalidRequest, match=r"messages\[1\] must be .* fields role, content"):
            await grpc_client.generate([asked[0], {"role": "user", "image": "x"}])
    extra = {"chat_template_kwargs": {"tone": 7}, "add_generation_prompt": False}
    chats = [await converse(client), await converse(client, extra_body=extra)]
    assert answers == [chat.choices[0].message.content for chat in chats]


async def test_a_chat_may_fill_the_context_and_a_completion_has_16_tokens(
    client: AsyncOpenAI,
) -> None:
    long = [{"role": "user", "content": "a dog " * 220}]
    more = {"messages": long, "max_tokens": openai.omit, "extra_body": {"ignore_eos": True}}
    assert (await converse(client, **more)).usage.total_tokens == 512
    assert (await complete(client, max_tokens=openai.omit)).usage.completion_tokens == 16
    short = await converse(client, max_tokens=openai.omit, max_completion_tokens=5)
    assert short.usage.completion_tokens == 5


async def test_a_stop_string_ends_the_text_before_it(client: AsyncOpenAI) -> None:
    whole = (await complete(client)).choices[0].text
    stop = whole[20:26]
    for given in (stop, ["never there", stop]):
        (cut,) = (await complete(client, stop=given)).choices
        assert (cut.text, cut.finish_reason) == (whole[: whole.index(stop)], "stop")
        assert cut.stop_reason == stop


async def test_logprobs_are_those_of_grpc(client: AsyncOpenAI, door: Door) -> None:
    request = ask(PROMPT, tokens=TOKENS)
    request.logprobs = 3
    answer = await door.stub.Generate(request)
    wanted = [each.logprob for each in answer.logprobs]
    (choice,) = (await complete(client, logprobs=3)).choices
    found = choice.logprobs
    assert found.token_logprobs == pytest.approx(wanted)
    assert "".join(found.tokens) == choice.text
    assert [max(top, key=lambda name: top[name]) for top in found.top_logprobs] == found.tokens
    assert all(len(top) == 3 for top in found.top_logprobs)
    assert found.text_offset[1] == len(found.tokens[0])
    streamed = [c.choices[0] async for c in await complete(client, logprobs=3, stream=True)]
    pieces = [piece.logprobs for piece in streamed if piece.logprobs]
    assert [token for piece in pieces for token in piece.tokens] == found.tokens
    assert [offset for piece in pieces for offset in piece.text_offset] == found.text_offset


async def test_logprobs_of_a_chat_have_bytes(client: AsyncOpenAI) -> None:
    (choice,) = (await converse(client, logprobs=True, top_logprobs=2)).choices
    content = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in content).decode() == choice.message.content
    assert all(each.top_logprobs[0].logprob == each.logprob for each in content)
    (plain,) = (await converse(client, logprobs=True)).choices
    assert [each.token for each in plain.logprobs.content] == [each.token for each in content]
    assert not any(each.top_logprobs for each in plain.logprobs.content)


async def test_what_does_nothing_is_accepted(client: AsyncOpenAI) -> None:
    plain = await converse(client)
    silent: dict[str, Any] = {
        "n": 1,
        "user": "somebody",
        "response_format": {"type": "text"},
        "tools": [],
        "parallel_tool_calls": True,
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "extra_body": {"top_k": -1},
    }
    found = await converse(client, **silent)
    assert found.choices[0].message.content == plain.choices[0].message.content


class Person(BaseModel):
    """A schema with the requested fields and no others."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=12)]
    age: Annotated[int, Field(ge=0, le=150)]
    tags: Annotated[list[Literal["tall", "small"]], Field(max_length=2)]


async def test_the_official_client_gets_answers_of_a_type(client: AsyncOpenAI) -> None:
    asked = {"model": "target", "messages": CHAT, "temperature": 1, "seed": 3}
    found = await client.chat.completions.parse(**asked, response_format=Person)  # type: ignore[call-overload]
    assert isinstance(found.choices[0].message.parsed, Person)
    of_vllm = {"structured_outputs": {"choice": ["yes", "no"]}}
    said = await complete(client, extra_body=of_vllm)
    assert said.choices[0].text in ("yes", "no") and said.choices[0].finish_reason == "stop"
    unfit = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError, match="schema has not at #, which is not supported"):
        await converse(client, response_format=unfit)


async def test_the_python_client_takes_a_grammar_by_the_names_of_the_api(door: Door) -> None:
    async with AsyncClient(door.address) as client:
        said = await client.generate(PROMPT, choice=["yes", "no"])
        person = await client.generate(PROMPT, json_schema=Person.model_json_schema(), seed=1)
        anything = await client.generate(PROMPT, json_object=True, max_new_tokens=5)
    assert said.text in ("yes", "no")
    assert Person.model_validate_json(person.text)
    assert anything.text.startswith("{")
