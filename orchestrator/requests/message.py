"""An assistant's message, read from the text of a model while it grows: reasoning, content, calls.

Pure, and the same however the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tandem.orchestrator.requests.request import ToolCall, digest
from tandem.orchestrator.requests.text import overlap
from tandem.orchestrator.requests.tools import CallFinder, Piece, ToolFormat

THINK, THOUGHT = "<think>", "</think>"
ID_DIGITS = 9  # of a call: some chat templates refuse others


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what a model thought before it answered."""

    text: str


Part: TypeAlias = str | Reasoning | ToolCall  # a str is content


@dataclass(slots=True)
class Message:
    """What has been read."""

    reasoning_content: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Take what comes next."""
        match part:
            case Reasoning(text):
                self.reasoning_content += text
            case str():
                self.content += part
            case ToolCall():
                self.tool_calls.append(part)


class ReasoningEnd:
    """Splits a text that grows into what stands between `<think>` and `</think>` at its beginning,
    and the rest. White space at both ends of either is dropped where there is reasoning.
    """

    def __init__(self, begun: bool) -> None:
        """If it has `begun`, the prompt has the first mark."""
        self._held = ""
        self._begun, self._ended = begun, False
        self._blank = begun  # nothing but white space came since the last mark

    def push(self, text: str) -> tuple[str, str]:
        """What is certain now: (reasoning, rest)."""
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
        """What is left of a text that ends here."""
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
    """What is looked for in an answer."""

    tools: ToolFormat | None = None
    known: Collection[str] = ()  # names of tools
    parallel: bool = True  # else only the first call counts
    reasoning: bool = False
    reasoning_begun: bool = False  # by the prompt
    strict: Collection[str] = ()  # names of tools

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are looked for also where they are special tokens."""
        marks = (THINK, THOUGHT) if self.reasoning else ()
        return marks + (self.tools.markers if self.tools else ())


class MessageStream:
    """Reads the message of one request, all of which is in `message`."""

    def __init__(self, reading: Reading, request_id: str) -> None:
        self.message = Message()
        self._reading, self._request_id = reading, request_id
        thinking = reading.reasoning
        self._reasoning = ReasoningEnd(reading.reasoning_begun) if thinking else None
        self._count = 0  # of calls
        form, known, strict = reading.tools, reading.known, reading.strict
        self._calls = CallFinder(form, known, strict) if form else None

    def push(self, text: str) -> tuple[Part, ...]:
        """What is certain now of the text so far."""
        reasoning, rest = self._reasoning.push(text) if self._reasoning else ("", text)
        return self._add(reasoning, self._calls.push(rest) if self._calls else (rest,))

    def finish(self) -> tuple[Part, ...]:
        """What is left of a text that ends here."""
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
