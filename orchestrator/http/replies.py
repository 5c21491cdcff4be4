"""Answers in OpenAI's shape, whole and in pieces, with log-probabilities that name their tokens.
Pure: the time is an argument.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeAlias

from google.protobuf.json_format import MessageToDict
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from tandem.orchestrator.frontend.messages import encode_stats
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.message import Message, Part, Reasoning
from tandem.orchestrator.requests.request import ToolCall
from tandem.orchestrator.requests.text import REPLACEMENT, special_tokens
from tandem.orchestrator.rounds.generation import Finish
from tandem.protos.tokenizer import SPACE
from tandem.protos.types import TokenLogprobs

Json: TypeAlias = dict[str, Any]
UTF_8 = partial(codecs.getincrementaldecoder("utf-8"), "replace")
FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length"}
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # written as they are


def byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary is written for."""
    others = (byte for byte in range(0x100) if byte not in VISIBLE)
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    written = {chr(byte): byte for byte in VISIBLE} | shifted
    assert set(written) == set(ByteLevel.alphabet())
    return written


class TokenTexts:
    """What single tokens of one vocabulary are, as text and as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._bytes = tokenizer, byte_of()
        self.special = frozenset(special_tokens(tokenizer).values())
        self.of = lru_cache(4096)(self._of)

    def _of(self, token: int) -> tuple[str, bytes]:
        """Its text, with U+FFFD for bytes that are no character by themselves; and its bytes."""
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        raw = self._tokenizer.id_to_token(token) or ""
        if raw.startswith(SPACE) and not text.startswith(" "):  # decoding removes it
            text = f" {text}"
        if REPLACEMENT not in text:
            return text, text.encode()
        if found := BYTE.fullmatch(raw):
            return text, bytes((int(found[1], 16),))
        if all(character in self._bytes for character in raw):
            return text, bytes(self._bytes[character] for character in raw)
        return text, text.encode()

    def name(self, token: int) -> str:
        """As text; one that is no whole character as its bytes, so that names differ."""
        text, content = self.of(token)
        if REPLACEMENT not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of one response share."""

    request_id: str
    model: str
    created: int  # seconds since 1970
    chat: bool
    include_usage: bool = False  # in a stream
    done: ClassVar = b"data: [DONE]\n\n"  # the end of a stream

    def whole(self, choices: Sequence[Json], answers: Sequence[Answer], each: int) -> Json:
        """All choices at once."""
        return self.with_choices(choices, "") | {"usage": usage(answers, each)}

    def total(self, answers: Sequence[Answer], each: int) -> Iterator[Json]:
        """What comes behind the last chunks of all choices."""
        if self.include_usage:
            yield self.with_choices([], ".chunk") | {"usage": usage(answers, each)}

    def with_choices(self, choices: Sequence[Json], suffix: str) -> Json:
        """An object of the response."""
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.request_id}",
            "object": f"chat.completion{suffix}" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclass
class Reply:
    """One choice on its way to a client, and how far it is."""

    head: Head
    index: int
    logprobs: bool
    tokens: TokenTexts
    include_figures: bool = False
    _decoder: codecs.IncrementalDecoder = field(default_factory=UTF_8, init=False)
    _characters: int = field(default=0, init=False)  # of the tokens so far, whole ones
    _calls: int = field(default=0, init=False)  # of tools, so far

    def whole(self, answer: Answer) -> Json:
        """The choice at once."""
        logprobs = self._logprobs(answer.token_ids, answer.logprobs)
        content = {"message": _message(answer)} if self.head.chat else {"text": answer.text}
        return {"index": self.index, **content, "logprobs": logprobs, **_end(answer)}

    def begun(self) -> Iterator[Json]:
        """What comes before the first chunk."""
        if self.head.chat:
            yield self._piece({"delta": {"role": "assistant", "content": ""}}, None)

    def chunk(self, chunk: Chunk) -> Iterator[Json]:
        """What one step adds, in a chat perhaps nothing; its log-probabilities are in the first."""
        contents: list[Json] = [{"text": chunk.text}]
        if self.head.chat:
            contents = [{"delta": self._delta(part)} for part in chunk.parts]
        logprobs = self._logprobs(chunk.token_ids, chunk.logprobs)
        for content in contents or ([{"delta": {}}] if logprobs else []):
            yield self._piece(content, logprobs)
            logprobs = None

    def _delta(self, part: Part) -> Json:
        match part:
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolCall():
                self._calls += 1
                return {"tool_calls": [{"index": self._calls - 1} | _call(part)]}
        return {"content": part}

    def ended(self, answer: Answer) -> Iterator[Json]:
        """What comes after the last chunk."""
        content: Json = {"delta": {}} if self.head.chat else {"text": ""}
        yield self._piece(content, None, _end(answer)) | self.figures(answer)

    def figures(self, answer: Answer) -> Json:
        """Of speculation, where vLLM has them and by the names of gRPC."""
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
        if not self.logprobs:
            return None
        pairs = list(zip(ids, found, strict=True))
        return self._of_chat(pairs) if self.head.chat else self._of_completion(pairs)

    def _of_chat(self, pairs: Sequence[tuple[int, TokenLogprobs]]) -> Json:
        def entry(token: int, logprob: float) -> Json:
            text, content = self.tokens.of(token)
            return {"token": text, "logprob": logprob, "bytes": list(content)}

        content = [
            entry(token, each.logprob) | {"top_logprobs": [entry(*pair) for pair in each.top]}
            for token, each in pairs
            if token not in self.tokens.special  # the end, which is no part of the content
        ]
        return {"content": content, "refusal": None}

    def _of_completion(self, pairs: Sequence[tuple[int, TokenLogprobs]]) -> Json:
        offsets = []
        for token, _ in pairs:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(self.tokens.of(token)[1]))
        name = self.tokens.name
        return {
            "tokens": [name(token) for token, _ in pairs],
            "token_logprobs": [each.logprob for _, each in pairs],
            "top_logprobs": [
                {name(token): logprob for token, logprob in reversed(each.top)} for _, each in pairs
            ],
            "text_offset": offsets,
        }


def usage(answers: Sequence[Answer], each: int) -> Json:
    """Tokens of all choices, and of the drafts that were verified for them. `each` choices have one
    prompt, which counts once.
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
    """Why it ended, and by what: vLLM's name for the stop string or token."""
    reason = FINISH.get(answer.finish, "stop") if answer.finish else "stop"
    if reason == "stop" and answer.message and answer.message.tool_calls:
        reason = "tool_calls"
    return {"finish_reason": reason, "stop_reason": answer.matched_stop}
