"""A client's request as plain values, whatever protocol it came by; None = not given. Pure.

Clients are known by digests of their names: requests of one client use each other's cached
prefixes, and share the places.
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
SHARE_DIGITS = 8  # that name a client, of the digest of its name
CHOICES: Mapping[str, type[Enum]] = {"rule": Rule, "method": Method, "schedule": Schedule}


def digest(text: str) -> bytes:
    """16 bytes that nobody can guess who does not know the text."""
    return hashlib.sha256(text.encode()).digest()[:16]


def client_digest(name: str) -> bytes:
    """Empty for a client without a name; a name that others cannot guess keeps them out."""
    return digest(f"client {name}") if name else b""


def scope_of(client: bytes, salt: str) -> bytes:
    """Whose cached prefixes a request of a client may use: with a salt only those of its own salt,
    else those of the client, which are everybody's without one.
    """
    return digest(f"salt {client.hex()} {salt}") if salt else client


def connection_digest(peer: str) -> bytes:
    """Whose share a request has whose client has no name."""
    return digest(f"connection {peer}")


def client_name(share: bytes) -> str:
    """How a client is called where people read it: its own name may be a secret."""
    return share.hex()[:SHARE_DIGITS]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; what the model's makers may set is None where it was not given."""

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
    """Where the completion ends."""

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
        """How drafts are found: where each step waits for a drafter's guess, a prediction could not
        be used beside it.
        """
        alone = self.prediction and self.rule is not Rule.MATCH
        return Method.SUFFIX if alone else self.method


@dataclass(frozen=True, slots=True)
class Quota:
    """What a client that is known by `name` may have; None is what all clients may."""

    name: str = ""
    running: int | None = None
    waiting: int | None = None
    weight: float = 1.0  # twice as many tokens as a client of half the weight


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` are a JSON schema."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False  # a call has arguments by the schema

    def plain(self) -> dict[str, object]:
        """As OpenAI's API and chat templates have it."""
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
    """What one side of a conversation wrote; the result of a tool names the call."""

    role: str
    content: str
    name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as the model's chat template writes it. If the final message is to be continued,
    the prompt ends where its content does.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    template_arguments: Mapping[str, object] = field(default_factory=dict)  # plain values
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"  # or required, or the name of the tool that is called
    parallel_tool_calls: bool = True
    continue_final_message: bool = False

    def size(self) -> int:
        """Bytes that were written, at least."""
        return sum(
            len(part.encode())
            for each in self.messages
            for part in (each.content, *(call.arguments for call in each.tool_calls))
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived: nothing is checked yet. `malformed` are the fields that could not be
    decoded; they are reported together with what else is wrong.
    """

    prompt: str | tuple[int, ...] | Conversation | None = None
    request_id: str = ""
    model: str = ""
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    speculation: Speculation = Speculation()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False  # the text begins with the prompt's, and log-probabilities with the prompt's
    return_token_ids: bool = False
    resume_from: int = 0  # how many of those there are, as older clients say
    received: tuple[int, ...] = ()  # completion tokens that the client already has
    client: bytes = b""  # whose cached prefixes may be used; empty = everybody's
    share: bytes = b""  # whose share of the places it takes; the connection's without a client
    malformed: tuple[Violation, ...] = ()
    traceparent: str = ""  # W3C: of the client's span
    part: bytes = b""  # of the share, whose parts take turns
    quota: Quota = Quota()
    default_new_tokens: int = DEFAULT_MAX_NEW_TOKENS  # or what the context still holds, if less

    @property
    def of_prompt(self) -> int | None:
        """How many of the likeliest tokens beside each of the prompt; None: not even its own."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((each for each in wanted if each is not None), default=None)

    @property
    def caller(self) -> str:
        """How its client is called in logs."""
        return self.quota.name or client_name(self.share)
