"""A client's request in a form that does not depend on the protocol. Options without a fixed
default are None if the request does not set them. The module is pure.

Clients are identified by digests of their names. Requests of one client share cached prefixes and a
quota.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tandem.protos.errors import Violation
from tandem.protos.grammar import Grammar
from tandem.protos.types import Method, Rule, Schedule

DEFAULT_MAX_NEW_TOKENS = 128
CLIENT_KEY = "x-tandem-client"
CLIENT_NAME_DIGITS = 8  # number of hex digits in a client's name in logs and status
CHOICES: Mapping[str, type[Enum]] = {"rule": Rule, "method": Method, "schedule": Schedule}


def digest(text: str) -> bytes:
    """Return a 16-byte hash of a text, which nobody can compute without knowing the text."""
    return hashlib.sha256(text.encode()).digest()[:16]


def client_digest(name: str) -> bytes:
    """Return the digest of a client's name, or empty bytes if the name is empty. If a client has a
    secret name, other clients cannot use its cached prefixes.
    """
    return digest(f"client {name}") if name else b""


def scope_of(client: bytes, salt: str) -> bytes:
    """Return the scope of the cached prefixes that a request may use. Requests of one client with
    the same salt share a scope, and so do its requests without a salt. Requests with neither a
    client name nor a salt share one common scope.
    """
    return digest(f"salt {client.hex()} {salt}") if salt else client


def connection_digest(peer: str) -> bytes:
    """Return the id of a client that gives no name: a digest of its connection."""
    return digest(f"connection {peer}")


def client_name(client_id: bytes) -> str:
    """Return the name of a client for logs and status. The name is a prefix of the client's id,
    because the client's own name may be a secret.
    """
    return client_id.hex()[:CLIENT_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling options of a request. Options that have a default in the model's configuration
    are None if the request does not set them.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    """The options that say where the completion ends."""

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Speculation:
    """The speculation options of a request, which override the server's settings."""

    rule: Rule = Rule.MATCH
    num_speculative_tokens: int | None = None
    branches: int | None = None
    drafter: str = ""
    method: Method | None = None
    schedule: Schedule | None = None
    confidence_threshold: float = 0.0
    prediction: str = ""  # text that the completion will probably repeat to a large extent

    @property
    def drafted_by(self) -> Method | None:
        """The drafting method. With any rule other than MATCH, each step waits for a drafter's
        proposal and cannot also use drafts from the prediction. A request with a prediction
        therefore uses the method SUFFIX if its rule is not MATCH.
        """
        alone = self.prediction and self.rule is not Rule.MATCH
        return Method.SUFFIX if alone else self.method


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of the client `name`. If a limit is None, the default limit per client applies."""

    name: str = ""
    running: int | None = None
    waiting: int | None = None
    weight: float = 1.0  # a client gets twice the tokens of a client with half its weight


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False  # whether the arguments of a call must conform to the schema

    def plain(self) -> dict[str, object]:
        """Return the tool in the format of OpenAI's API, which chat templates also expect."""
        given = {"description": self.description, "parameters": self.parameters}
        known = {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": {"name": self.name} | known}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model generated; `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation. A message with a tool's result has the id of the call in
    `tool_call_id`.
    """

    role: str
    content: str
    name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat, which the model's chat template renders as a prompt. If the final message is to be
    continued, the prompt ends with the content of that message.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    template_arguments: Mapping[str, object] = field(default_factory=dict)  # JSON values
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"  # "auto", "required", or the name of the tool that must be called
    parallel_tool_calls: bool = True
    continue_final_message: bool = False

    def size(self) -> int:
        """Return the total size of all contents and call arguments in bytes. The prompt is at least
        this long.
        """
        return sum(
            len(part.encode())
            for each in self.messages
            for part in (each.content, *(call.arguments for call in each.tool_calls))
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived, not yet checked. `malformed` has the fields that could not be
    decoded, which are reported together with all other violations.
    """

    prompt: str | tuple[int, ...] | Conversation | None = None
    request_id: str = ""
    model: str = ""
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    speculation: Speculation = Speculation()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False  # whether the answer begins with the prompt's text and log-probabilities
    return_token_ids: bool = False
    resume_from: int = 0  # number of `received` tokens; only older clients give this field
    received: tuple[int, ...] = ()  # completion tokens that the client already has
    # scope whose cached prefixes the request may use; empty means the common scope
    cache_scope: bytes = b""
    client_id: bytes = b""  # digest of the client or connection whose quota the request uses
    malformed: tuple[Violation, ...] = ()
    traceparent: str = ""  # the client's trace span, as in W3C's `traceparent` header
    subclient_id: bytes = b""  # a client's subclients take turns in starting requests
    quota: Quota = Quota()
    # default of `max_new_tokens`, reduced if the context has less room
    default_new_tokens: int = DEFAULT_MAX_NEW_TOKENS

    @property
    def prompt_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report for each prompt token; None if the request
        asks for no log-probabilities of the prompt.
        """
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((each for each in wanted if each is not None), default=None)

    @property
    def caller(self) -> str:
        """The name of the request's client in logs."""
        return self.quota.name or client_name(self.client_id)
