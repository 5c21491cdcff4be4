"""Find tool calls in the output of a model while the output grows. A `ToolFormat` says how a model
marks calls, which are JSON. The module is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from pydantic_core import from_json

from tandem.orchestrator.requests.request import ToolCall

Piece: TypeAlias = str | ToolCall  # content, or a tool call that has no id yet
ARGUMENTS = ("arguments", "parameters")  # keys under which models write a call's arguments
VALUE = r'\{\s*["}]|\[\s*\{\s*"'  # how the JSON of a call begins
BEGUN = r"(?:\{\s*|\[\s*(?:\{\s*)?)?\Z"  # the start of a call's JSON at the end of a text
NAME, SEPARATORS = r"[\w.-]{1,128}", (";", ",")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes a call: as JSON after the marker `begin`. A `bare` format also allows JSON
    at the start of a line. If `named` is set, a tool's name may precede the JSON.
    """

    name: str
    begin: str = ""
    end: str = ""
    named: str = ""  # the marker that may come between the name and the arguments
    bare: bool = False
    signs: tuple[str, ...] = ()  # texts in a chat template that indicate this format

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers of a call, which may be special tokens that decoding leaves out."""
        return tuple(filter(None, (self.begin, self.end, self.named)))

    def start(self) -> re.Pattern[str]:
        """Return a pattern that matches the start of a tool call up to the call's JSON."""
        name = rf"(?:(?P<name>{NAME})(?:{re.escape(self.named)})?\s*)?" if self.named else ""
        marked = [rf"{re.escape(self.begin)}\s*{name}"] if self.begin else []
        return re.compile("|".join(rf"(?:{each})(?={VALUE})" for each in [*marked, *self._lines()]))

    def started(self) -> re.Pattern[str]:
        """Return a pattern that matches the possible beginning of a call at a text's end."""
        named = f"(?:{NAME}(?:{_beginnings(self.named)})?)?" if self.named else ""
        marked = [rf"{re.escape(self.begin)}\s*{named}\s*{BEGUN}"] if self.begin else []
        lines = [rf"{each}{BEGUN}" for each in self._lines()]
        return re.compile("|".join([*marked, *lines, rf"(?:{_beginnings(self.begin)})\Z"]))

    def _lines(self) -> list[str]:
        return [r"\n[ \t]*"] if self.bare else []


def head_of(name: str) -> str:
    """Return a regex, valid in Python and Rust, that matches a call up to its arguments."""
    kind = r'("type"\s*:\s*"function"\s*,\s*)?'
    return rf'\{{\s*{kind}"name"\s*:\s*"{re.escape(name)}"\s*,\s*"({"|".join(ARGUMENTS)})"\s*:'


def _beginnings(marker: str) -> str:
    """Return a pattern that matches any prefix of a marker, trying the longest first."""
    sizes = range(len(marker), 0, -1)
    return "|".join(re.escape(marker[:size]) for size in sizes) or r"(?!)"


FORMATS = {
    each.name: each
    for each in (
        ToolFormat("hermes", "<tool_call>", "</tool_call>", signs=("<tool_call>",)),
        ToolFormat("mistral", "[TOOL_CALLS]", named="[ARGS]", signs=("[TOOL_CALLS]",)),
        ToolFormat("llama3", "<|python_tag|>", bare=True, signs=("<|python_tag|>", '"parameters"')),
        ToolFormat("json", bare=True, signs=('"arguments"',)),
    )
}
UNKNOWN_FORMAT_SIGNS = ("<function=", "<arg_key>", "<\uff5ctool")


def format_of(template: str) -> ToolFormat | None:
    """Return the tool call format of a chat template; None if the format is unknown."""
    if any(sign in template for sign in UNKNOWN_FORMAT_SIGNS):
        return None
    plain = template.replace('\\"', '"')
    formats = FORMATS.values()
    return next((each for each in formats if any(sign in plain for sign in each.signs)), None)


@dataclass(slots=True)
class JsonEnd:
    """Finds the end of a JSON object or list in a growing text by counting brackets."""

    position: int  # index of the next character to examine
    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def find(self, text: str) -> int:
        """Return the index after the end of the object or list; -1 while it is incomplete."""
        for position in range(self.position, len(text)):
            character = text[position]
            if self.quoted:
                self.quoted = self.escaped or character != '"'
                self.escaped = character == "\\" and not self.escaped
            elif character == '"':
                self.quoted = True
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
                if self.depth == 0:
                    return position + 1
        self.position = len(text)
        return -1


class CallFinder:
    """Splits a growing text into content and tool calls. The result is the same however the text is
    split. Text that only looks like a call is content. White space around calls is dropped.
    """

    def __init__(
        self, form: ToolFormat, known: Collection[str], strict: Collection[str] = ()
    ) -> None:
        """A call without a marker is recognised only if it names a `known` tool. In a bare format,
        a call of a `strict` tool is recognised only if it begins as the tool's grammar requires.
        """
        self._form = form
        self._known = frozenset(known)
        self._heads = {name: re.compile(head_of(name)) for name in strict if form.bare}
        self._start = form.start()
        self._started = form.started()
        self._held = ""  # text that may belong to a call
        self._json: JsonEnd | None = None  # finds the end of a call that has begun
        self._json_start = 0  # position in the held text where the call's JSON starts
        self._name = ""  # name before the call's JSON, if there is one
        self._marked = False  # whether a marker precedes the call's JSON
        self._after_call = False
        self._in_line = False  # whether content of the current line was already returned

    def push(self, text: str) -> Iterator[Piece]:
        """Add text, and yield the pieces of content and calls that have become final."""
        self._held += text
        while (pieces := self._next()) is not None:
            yield from pieces

    def finish(self) -> Iterator[Piece]:
        """Handle the end of the text, and yield the text that was held back."""
        rest, self._held, self._json = self._held, "", None
        if self._after_call and self._form.end.startswith(rest.strip()):
            return
        if rest:
            yield rest.lstrip() if self._after_call else rest

    def _next(self) -> Sequence[Piece] | None:
        """Return the next pieces that have become final; None if more text is needed."""
        if self._json is not None:
            return self._ended(self._json.find(self._held))
        if self._after_call and not self._passed():
            return None
        line = ("" if self._in_line else "\n") + self._held
        more = len(line) - len(self._held)
        start = self._start.search(line)
        begun = start or self._started.search(line)
        content = line[: begun.start() if begun else len(line)][more:].rstrip()
        self._held = self._held[len(content) :]
        if start:
            self._json_start = start.end() - more - len(content)
            self._json = JsonEnd(self._json_start)
            self._name = start.groupdict().get("name") or ""
            self._marked = bool(self._held[: self._json_start].strip())
        elif not content:
            return None
        self._in_line |= bool(content)
        return [content] if content else []

    def _ended(self, end: int) -> Sequence[Piece] | None:
        """Return the held text before `end`, as tool calls if it has any; None if `end` is -1."""
        if end < 0:
            return None
        whole, self._held, self._json = self._held[:end], self._held[end:], None
        found = calls_in(whole[self._json_start :], self._name)
        if not self._marked and any(call.name not in self._known for call in found):
            found = ()
        for name, head in self._heads.items():
            if sum(call.name == name for call in found) > len(head.findall(whole)):
                found = ()
        self._after_call = bool(found)
        self._in_line = not found
        return found or (whole,)

    def _passed(self) -> bool:
        """Drop text that belongs to the previous call; return whether that call has ended."""
        rest, end = self._held.lstrip(), self._form.end
        if end and rest.startswith(end):
            rest = rest.removeprefix(end).lstrip()
        self._held = rest
        if end.startswith(rest):  # at most a part of the end marker has arrived
            return False
        if self._form.bare and rest.startswith(SEPARATORS):
            value = rest[1:].lstrip()
            if re.match(BEGUN, value):
                return False
            self._held = value if re.match(VALUE, value) else rest
        self._after_call = False
        return True


def calls_in(text: str, name: str = "") -> tuple[ToolCall, ...]:
    """Return the calls in a JSON text, which has only the arguments if `name` is given."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if name:
            return (_call({"name": name, "arguments": value}),)
        return tuple(map(_call, value if isinstance(value, list) else (value,)))
    except (ValueError, RecursionError):
        return ()


def json_object(text: str) -> dict[str, Any]:
    """Parse text as a JSON object. Raises ValueError, whose message says what was expected."""
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        raise ValueError("JSON") from None
    if not isinstance(found, dict):
        raise ValueError("a JSON object")
    return found


def _call(value: Any) -> ToolCall:
    """Return the tool call in a JSON value. Raises ValueError if the value is not a tool call."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError
    arguments: Any = next((value[key] for key in ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments, parse_constant=_no_constant)
    if not isinstance(arguments, dict):
        raise ValueError
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    written.encode()
    return ToolCall(name, written)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN or Infinity
