"""Bodies of `/tokenize` and `/detokenize`, as vLLM has them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.orchestrator.http.bodies.decoding import conversation_of
from tandem.orchestrator.http.bodies.parsing import fitted, parsed, read
from tandem.orchestrator.http.bodies.parts import Body, TokenIds
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody, GenerationBody
from tandem.orchestrator.requests.request import Conversation
from tandem.protos.errors import InvalidRequest


class TokenizeOptions(Body):
    """What the body of a completion or a chat has beside its own fields. A text has the special
    tokens of a prompt unless it says otherwise, a chat those that its template writes.
    """

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Tokens."""

    model: str | None = None
    tokens: TokenIds


@dataclass(frozen=True, slots=True)
class Tokenized:
    """What is to be tokens, with special ones added or not, and the body that it is from."""

    body: GenerationBody
    prompt: str | Conversation
    special: bool
    with_texts: bool


def tokenized(content: bytes) -> tuple[Tokenized, tuple[str, ...]]:
    """What a body asks for, and the names of what is ignored in it; raises InvalidRequest."""
    fields, ignored = read(content)
    own = {name: fields.pop(name) for name in TokenizeOptions.model_fields if name in fields}
    options = fitted(TokenizeOptions, own)
    body: GenerationBody
    if "messages" in fields:
        body = chat = fitted(ChatBody, fields)
        prompt: object = conversation_of(chat)
    else:
        body = completion = fitted(CompletionBody, fields)
        prompt = completion.prompt
    if not isinstance(prompt, str | Conversation):
        raise InvalidRequest.of("prompt", "is not a text")
    special, asked = isinstance(prompt, str), options.add_special_tokens
    special = special if asked is None else asked
    return Tokenized(body, prompt, special, bool(options.return_token_strs)), ignored


def detokenized(content: bytes) -> tuple[DetokenizeBody, tuple[str, ...]]:
    """The same of tokens."""
    return parsed(DetokenizeBody, content)
