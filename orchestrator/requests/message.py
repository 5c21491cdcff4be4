"""Parse an assistant's message from a model's growing text: its reasoning, content and tool calls.

The module is pure. The result does not depend on how the text is split into pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tandem.orchestrator.requests.request import ToolCall, digest
from tandem.orchestrator.requests.text import overlap
from tandem.orchestrator.requests.tools import CallFinder, Piece, ToolFormat

THINK, THOUGHT = "<think>", "</think>"
ID_DIGITS = 9  # number of hex digits in a call's id; some chat templates refuse other lengths


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning that a model writes before its answer."""

    text: str


Part: TypeAlias = str | Reasoning | ToolCall  # a part of the content is a plain str


@dataclass(slots=True)
class Message:
    """The parts of a message that have been parsed so far."""

    reasoning_content: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Append the next part of the message."""
        match part:
            case Reasoning(text):
                self.reasoning_content += text
            case str():
                self.content += part
            case ToolCall():
                self.tool_calls.append(part)


class ReasoningEnd:
    """Splits a growing text into reasoning and the rest. Reasoning is text between `<think>` and
    `</think>` at the beginning. If there is reasoning, white space around the reasoning and around
    the rest is dropped.
    """

    def __init__(self, begun: bool) -> None:
        """`begun` says whether the prompt already ends with `<think>`."""
        self._held = ""
        self._begun = begun
        self._ended = False
        self._blank = begun  # whether only white space followed the last `<think>` or `</think>`

    def push(self, text: str) -> tuple[str, str]:
        """Add text. Returns the reasoning and other text that have become final."""
        self._held += text
        if not self._begun and not self._ended:
            head = self._held.lstrip()
            if head.startswith(THINK):
                self._begun, self._blank, self._held = True, True, head.removeprefix(THINK)
            elif not THINK.startswith(head):
                self._ended = True
        reasoning = self._reasoning() if self._begun and not self._ended else ""
        return reasoning, self._rest() if self._ended else ""

    def finish(self) -> tuple[str, str]:
        """Handle the end of the text. Returns the reasoning and other text held back so far."""
        rest, self._held = self._held, ""
        return (rest, "") if self._begun and not self._ended else ("", rest)

    def _reasoning(self) -> str:
        if self._blank:
            self._held = self._held.lstrip()
            self._blank = not self._held
        thought, mark, after = self._held.partition(THOUGHT)
        if mark:
            self._ended, self._blank, self._held = True, True, after
            return thought.rstrip()
        certain = thought[: len(thought) - overlap(thought, THOUGHT)].rstrip()
        self._held = thought[len(certain) :]
        return certain

    def _rest(self) -> str:
        if self._blank:
            self._held = self._held.lstrip()
            self._blank = not self._held
        rest, self._held = self._held, ""
        return rest


@dataclass(frozen=True, slots=True)
class Reading:
    """Parser settings for an answer that may contain tool calls and reasoning."""

    tools: ToolFormat | None = None
    known: Collection[str] = ()  # names of the conversation's tools
    parallel: bool = True  # whether all calls count; otherwise only the first call counts
    reasoning: bool = False
    reasoning_begun: bool = False  # whether the prompt ends with `<think>`
    strict: Collection[str] = ()  # names of the strict tools

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers of reasoning and tool calls, which must not be left out of the decoded text
        even if they are special tokens.
        """
        marks = (THINK, THOUGHT) if self.reasoning else ()
        return marks + (self.tools.markers if self.tools else ())


class MessageStream:
    """Parses the growing answer to one request. `message` has the parts parsed so far."""

    def __init__(self, reading: Reading, request_id: str) -> None:
        self.message = Message()
        self._reading = reading
        self._request_id = request_id
        thinking = reading.reasoning
        self._reasoning = ReasoningEnd(reading.reasoning_begun) if thinking else None
        self._count = 0  # number of tool calls so far
        form, known, strict = reading.tools, reading.known, reading.strict
        self._calls = CallFinder(form, known, strict) if form else None

    def push(self, text: str) -> tuple[Part, ...]:
        """Add text, and return the parts of the message that have become final."""
        reasoning, rest = self._reasoning.push(text) if self._reasoning else ("", text)
        return self._add(reasoning, self._calls.push(rest) if self._calls else (rest,))

    def finish(self) -> tuple[Part, ...]:
        """Handle the end of the text, and return the message parts held back so far."""
        reasoning, rest = self._reasoning.finish() if self._reasoning else ("", "")
        if not self._calls:
            return self._add(reasoning, (rest,))
        return self._add(reasoning, (*self._calls.push(rest), *self._calls.finish()))

    def _add(self, reasoning: str, pieces: Iterable[Piece]) -> tuple[Part, ...]:
        parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
        for piece in pieces:
            if isinstance(piece, str):
                parts += [piece] if piece else []
            elif self._reading.parallel or not self._count:
                number = f"{self._request_id} {self._count}"
                parts.append(replace(piece, id=digest(number).hex()[:ID_DIGITS]))
                self._count += 1
        for part in parts:
            self.message.add(part)
        return tuple(parts)
