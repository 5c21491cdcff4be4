"""Format answers as in OpenAI's API, either whole or as a stream, with log-probabilities. The
module is pure: callers pass the creation time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from google.protobuf.json_format import MessageToDict

from tandem.orchestrator.frontend.messages import encode_stats
from tandem.orchestrator.http import logprobs
from tandem.orchestrator.http.logprobs import CompletionLogprobs, Json
from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.requests.answer import Answer, Chunk, PromptPart
from tandem.orchestrator.requests.message import Message, Part, Reasoning
from tandem.orchestrator.requests.request import Request, ToolCall
from tandem.orchestrator.rounds.generation import Finish
from tandem.protos.types import TokenLogprobs

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that all objects of one response share."""

    request_id: str
    model: str
    created: int  # time of creation in seconds since 1970
    chat: bool
    include_usage: bool = False  # whether a stream ends with an object that reports the usage
    done: ClassVar = b"data: [DONE]\n\n"  # the last event of a stream

    def whole(self, choices: Sequence[Json], answers: Sequence[Answer], each: int) -> Json:
        """Return the whole response with all choices, for a request without streaming."""
        return self.with_choices(choices, "") | {"usage": usage(answers, each)}

    def total(self, answers: Sequence[Answer], each: int) -> Iterator[Json]:
        """If requested, yield the object that reports the token usage at the end of a stream."""
        if self.include_usage:
            yield self.with_choices([], ".chunk") | {"usage": usage(answers, each)}

    def with_choices(self, choices: Sequence[Json], suffix: str) -> Json:
        """Return a response object that contains the given choices."""
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.request_id}",
            "object": f"chat.completion{suffix}" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclass
class Reply:
    """Formats one choice of a response, either whole or as a stream of objects."""

    head: Head
    index: int
    asked: Request
    tokens: TokenTexts
    include_figures: bool = False
    _calls: int = field(default=0, init=False)  # number of tool calls so far
    _completion: CompletionLogprobs = field(init=False)

    def __post_init__(self) -> None:
        self._completion = CompletionLogprobs(self.tokens)

    def whole(self, answer: Answer) -> Json:
        """Return the whole choice, for a request without streaming."""
        before = self._logprobs_of_prompt(answer.prompt)
        found = self._logprobs(answer.token_ids, answer.logprobs)
        if before and found:
            found = {name: before[name] + found[name] for name in before}
        content: Json = {"text": answer.prompt.text + answer.text}
        if self.head.chat:
            content = {"message": _message(answer)}
        content |= {"logprobs": found} | self._ids(answer.token_ids)
        extra = {} if self.head.chat else self._of_prompt(answer.prompt)
        return {"index": self.index, **content, **extra, **_end(answer)}

    def begun(self, prompt: PromptPart) -> Iterator[Json]:
        """Yield the stream objects that precede the first chunk. The stream of a chat begins with
        an object with the assistant's role. The stream of a completion begins with the prompt's
        text or token ids if the request asks for them.
        """
        extra = {"prompt_token_ids": prompt.token_ids} if self.asked.return_token_ids else {}
        if self.head.chat:
            yield self._piece({"delta": {"role": "assistant", "content": ""}}, None) | extra
        elif extra or self.asked.echo:
            found = self._logprobs_of_prompt(prompt)
            yield self._piece({"text": prompt.text} | extra, found)

    def chunk(self, chunk: Chunk) -> Iterator[Json]:
        """Yield the stream objects with the output of one step; for a chat there may be none. The
        first object contains the step's log-probabilities and token ids if the request asks for
        them.
        """
        contents: list[Json] = [{"text": chunk.text}]
        if self.head.chat:
            contents = [{"delta": self._delta(part)} for part in chunk.parts]
        found, ids = self._logprobs(chunk.token_ids, chunk.logprobs), self._ids(chunk.token_ids)
        for content in contents or ([{"delta": {}}] if found or ids else []):
            yield self._piece(content | ids, found)
            found, ids = None, {}

    def _delta(self, part: Part) -> Json:
        match part:
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolCall():
                self._calls += 1
                return {"tool_calls": [{"index": self._calls - 1} | _call(part)]}
        return {"content": part}

    def ended(self, answer: Answer) -> Iterator[Json]:
        """Yield the stream object that follows the last chunk and says why the answer ended."""
        content: Json = {"delta": {}} if self.head.chat else {"text": ""}
        yield self._piece(content, None, _end(answer)) | self.figures(answer)

    def extras(self, answer: Answer) -> Json:
        """Return fields that are added to the top level of a whole response, outside of its
        choices.
        """
        of_prompt = self._of_prompt(answer.prompt) if self.head.chat else {}
        return of_prompt | self.figures(answer)

    def figures(self, answer: Answer) -> Json:
        """Return the speculation statistics if the request asks for them. The statistics are in
        vLLM's field `metrics`, under the names of the gRPC API.
        """
        if not self.include_figures:
            return {}
        figures = MessageToDict(
            encode_stats(answer.speculation, answer.rule),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return {"metrics": {"speculative_decoding": figures}}

    def _piece(self, content: Json, logprobs: Json | None, end: Json | None = None) -> Json:
        end = end or {"finish_reason": None}
        choice = {"index": self.index, **content, "logprobs": logprobs, **end}
        piece = self.head.with_choices([choice], ".chunk")
        return piece | ({"usage": None} if self.head.include_usage else {})

    def _logprobs(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json | None:
        if self.asked.logprobs is None:
            return None
        of_chat = self.head.chat
        return (
            logprobs.of_chat(self.tokens, ids, found)
            if of_chat
            else self._completion.of(ids, found)
        )

    def _logprobs_of_prompt(self, prompt: PromptPart) -> Json | None:
        """Return the log-probabilities of an echoed prompt; None if echo or logprobs is off."""
        if self.asked.logprobs is None or not self.asked.echo:
            return None
        return self._completion.of_prompt(prompt, self.asked.logprobs)

    def _ids(self, ids: Sequence[int]) -> Json:
        return {"token_ids": ids} if self.asked.return_token_ids else {}

    def _of_prompt(self, prompt: PromptPart) -> Json:
        """Return the prompt's token ids and log-probabilities in vLLM's fields, if requested."""
        ids = {"prompt_token_ids": prompt.token_ids} if self.asked.return_token_ids else {}
        if self.asked.prompt_logprobs is None:
            return ids
        return ids | {"prompt_logprobs": logprobs.of_prompt(self.tokens, prompt)}


def usage(answers: Sequence[Answer], each: int) -> Json:
    """Return the token usage of all choices, with the accepted and rejected draft tokens. `each` is
    the number of choices per prompt. The tokens of each prompt are counted only once.
    """
    prompt = sum(answer.prompt_tokens for answer in answers[::each])
    completion = sum(len(answer.token_ids) for answer in answers)
    accepted = sum(answer.speculation.accepted for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(answer.cached_tokens for answer in answers[::each])
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(answer.speculation.drafted for answer in answers)
            - accepted,
        },
    }


def _message(answer: Answer) -> Json:
    message = answer.message or Message(content=answer.text)
    calls = [_call(each) for each in message.tool_calls]
    thought = message.reasoning_content
    return {
        "role": "assistant",
        "content": message.content or (None if calls or thought else ""),
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _end(answer: Answer) -> Json:
    """Return the reason why an answer ended and, as vLLM's `stop_reason`, the stop string or token
    that ended it.
    """
    reason = FINISH.get(answer.finish, "stop") if answer.finish else "stop"
    if reason == "stop" and answer.message and answer.message.tool_calls:
        reason = "tool_calls"
    return {"finish_reason": reason, "stop_reason": answer.matched_stop}
