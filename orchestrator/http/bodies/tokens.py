"""The request bodies of `/tokenize` and `/detokenize`, as in vLLM's API. The module is pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.orchestrator.http.bodies.decoding import conversation_of
from tandem.orchestrator.http.bodies.parsing import parsed, read, validated
from tandem.orchestrator.http.bodies.parts import Body, TokenIds
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody, GenerationBody
from tandem.orchestrator.requests.request import Conversation
from tandem.protos.errors import InvalidRequest


class TokenizeOptions(Body):
    """The fields that `/tokenize` adds to the body of a completion or a chat. By default, special
    tokens are added to plain text but not to a chat, whose template already writes them.
    """

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """The body of `/detokenize`: token ids."""

    model: str | None = None
    tokens: TokenIds


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A parsed request to `/tokenize`, which asks for the tokens of a prompt. `special` says
    whether to add special tokens, and `with_texts` says whether to return the text of each token.
    """

    body: GenerationBody
    prompt: str | Conversation
    special: bool
    with_texts: bool


def tokenized(content: bytes) -> tuple[Tokenized, tuple[str, ...]]:
    """Parse the body of `/tokenize`. Returns the parsed request and the names of ignored fields.
    Raises InvalidRequest.
    """
    fields, ignored = read(content)
    own = {name: fields.pop(name) for name in TokenizeOptions.model_fields if name in fields}
    options = validated(TokenizeOptions, own)
    body: GenerationBody
    if "messages" in fields:
        body = chat = validated(ChatBody, fields)
        prompt: object = conversation_of(chat)
    else:
        body = completion = validated(CompletionBody, fields)
        prompt = completion.prompt
    if not isinstance(prompt, str | Conversation):
        raise InvalidRequest.of("prompt", "is not a text")
    special, asked = isinstance(prompt, str), options.add_special_tokens
    special = special if asked is None else asked
    return Tokenized(body, prompt, special, bool(options.return_token_strs)), ignored


def detokenized(content: bytes) -> tuple[DetokenizeBody, tuple[str, ...]]:
    """Parse the body of `/detokenize`. Returns the body and the names of its ignored fields. Raises
    InvalidRequest.
    """
    return parsed(DetokenizeBody, content)
