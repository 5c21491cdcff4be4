"""A client's request as plain values, which are the same for every protocol. None means that the
request does not give a value. The module is pure.

Clients are known by digests of their names. Requests of one client share cached prefixes and
places.
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
CLIENT_NAME_DIGITS = 8  # hex digits of the digest that name a client in logs and status
CHOICES: Mapping[str, type[Enum]] = {"rule": Rule, "method": Method, "schedule": Schedule}


def digest(text: str) -> bytes:
    """Return 16 bytes that nobody can guess without knowing the text."""
    return hashlib.sha256(text.encode()).digest()[:16]


def client_digest(name: str) -> bytes:
    """Return the digest of a client's name; empty without a name. A name that others cannot guess
    keeps them out of the client's cached prefixes.
    """
    return digest(f"client {name}") if name else b""


def scope_of(client: bytes, salt: str) -> bytes:
    """Return the scope of the cached prefixes that a request may use. Requests of one client with
    the same salt share a scope. A client's requests without a salt also share a scope. Requests
    without a client name or a salt share everybody's scope.
    """
    return digest(f"salt {client.hex()} {salt}") if salt else client


def connection_digest(peer: str) -> bytes:
    """Return the id of a client without a name, which is a digest of its connection."""
    return digest(f"connection {peer}")


def client_name(client_id: bytes) -> str:
    """Return the name of a client for logs and status. The name is a part of the client's id,
    because the client's own name may be a secret.
    """
    return client_id.hex()[:CLIENT_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options of sampling. Options that the model's makers may set are None if the request does
    not set them.
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
    """Overrides of the server's speculation settings."""

    rule: Rule = Rule.MATCH
    num_speculative_tokens: int | None = None
    branches: int | None = None
    drafter: str = ""
    method: Method | None = None
    schedule: Schedule | None = None
    confidence_threshold: float = 0.0
    prediction: str = ""  # a text that much of the completion may repeat

    @property
    def drafted_by(self) -> Method | None:
        """The method that finds drafts. With another rule than MATCH, each step waits for a
        drafter's proposal, so a prediction could not be used at the same time. A request with such
        a rule and a prediction therefore has the method SUFFIX.
        """
        alone = self.prediction and self.rule is not Rule.MATCH
        return Method.SUFFIX if alone else self.method


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a client that is known by `name`; None means the limit of all clients."""

    name: str = ""
    running: int | None = None
    waiting: int | None = None
    weight: float = 1.0  # a client gets twice the tokens of a client with half its weight


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` are a JSON schema."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False  # whether the arguments of a call always fit the schema

    def plain(self) -> dict[str, object]:
        """Return the tool as an object in the form of OpenAI's API and of chat templates."""
        given = {"description": self.description, "parameters": self.parameters}
        known = {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": {"name": self.name} | known}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote; `arguments` are a JSON object."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation. The result of a tool names its call in `tool_call_id`."""

    role: str
    content: str
    name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template writes. If the final message is to be continued, the
    prompt ends with the content of that message.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    template_arguments: Mapping[str, object] = field(default_factory=dict)  # plain values
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"  # "auto", "required", or the name of the tool that must be called
    parallel_tool_calls: bool = True
    continue_final_message: bool = False

    def size(self) -> int:
        """Return the bytes of all contents and arguments; a prompt has at least as many."""
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
    echo: bool = False  # whether text and log-probabilities begin with those of the prompt
    return_token_ids: bool = False
    resume_from: int = 0  # number of `received` tokens; only older clients give this field
    received: tuple[int, ...] = ()  # completion tokens that the client already has
    # scope whose cached prefixes the request may use; empty means everybody's
    cache_scope: bytes = b""
    client_id: bytes = b""  # digest of the client or connection whose places it takes
    malformed: tuple[Violation, ...] = ()
    traceparent: str = ""  # the client's span, as in W3C's header of this name
    subclient_id: bytes = b""  # part of the client's requests; such parts take turns
    quota: Quota = Quota()
    # default of `max_new_tokens`, unless the context has less room
    default_new_tokens: int = DEFAULT_MAX_NEW_TOKENS

    @property
    def prompt_top_logprobs(self) -> int | None:
        """The number of likeliest tokens to report beside each token of the prompt; None if not
        even the prompt's own log-probabilities are wanted.
        """
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((each for each in wanted if each is not None), default=None)

    @property
    def caller(self) -> str:
        """The name of the request's client in logs."""
        return self.quota.name or client_name(self.client_id)
