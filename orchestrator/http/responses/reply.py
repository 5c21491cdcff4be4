"""Format the answers of `/v1/responses`, either as one object with items or as a stream of events.
The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tandem.orchestrator.http.logprobs import Json
from tandem.orchestrator.http.replies import usage
from tandem.orchestrator.http.responses.body import ResponsesBody
from tandem.orchestrator.requests.answer import Answer, Chunk, PromptPart
from tandem.orchestrator.requests.message import Message, Part, Reasoning
from tandem.orchestrator.requests.request import ToolCall
from tandem.orchestrator.rounds.generation import Finish


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """Provides the methods of `Head` for `/v1/responses`, where a response has exactly one choice.
    The type of the last event marks the end of a stream, so no end marker is sent.
    """

    done = b""

    def whole(self, choices: Sequence[Json], answers: Sequence[Answer], each: int) -> Json:
        """Return the only choice, which is the whole response."""
        return choices[0]

    def total(self, answers: Sequence[Answer], each: int) -> Iterator[Json]:
        """Return no objects, since nothing follows the last event of a response."""
        return iter(())


@dataclass
class ResponsesReply:
    """Formats one response, either whole or as events. Keeps the complete items of the response and
    the item that still grows.
    """

    request_id: str
    model: str
    created: int  # time of creation in seconds since 1970
    asked: ResponsesBody
    parallel: bool = True
    index: int = field(default=0, init=False)
    head: WholeResponse = field(default_factory=WholeResponse, init=False)
    _items: list[Json] = field(default_factory=list, init=False)
    _kind: str = field(default="", init=False)  # kind of the current item; "" if there is none
    _text: str = field(default="", init=False)  # text of the current item so far
    _number: int = field(default=0, init=False)  # the sequence number of the next event

    def whole(self, answer: Answer) -> Json:
        """Return the whole response, for a request without streaming."""
        message = answer.message or Message(content=answer.text)
        parts: list[Part] = []
        if message.reasoning_content:
            parts.append(Reasoning(message.reasoning_content))
        if message.content or not message.tool_calls:
            parts.append(message.content)
        for part in (*parts, *message.tool_calls):
            list(self._add(part))
        list(self._close())
        return self._response(answer)

    def extras(self, answer: Answer) -> Json:
        """Return no additional fields, since the choice already is the whole response."""
        return {}

    def begun(self, prompt: PromptPart) -> Iterator[Json]:
        """Yield the events that precede the first chunk: `response.created` and `in_progress`."""
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response(None))

    def chunk(self, chunk: Chunk) -> Iterator[Json]:
        """Yield the events with the output of one step; there may be none."""
        for part in chunk.parts:
            yield from self._add(part)

    def ended(self, answer: Answer) -> Iterator[Json]:
        """Yield the events after the last chunk: the last item's end and the whole response."""
        if not self._items and not self._kind:
            yield from self._add("")
        yield from self._close()
        name = "incomplete" if answer.finish is Finish.LENGTH else "completed"
        yield self._event(name, response=self._response(answer))

    def _add(self, part: Part) -> Iterator[Json]:
        match part:
            case ToolCall():
                yield from self._close()
                yield from self._open("function_call", part)
                yield from self._close(part)
            case Reasoning(text):
                yield from self._grow("reasoning", text)
            case str():
                yield from self._grow("message", part)

    def _grow(self, kind: str, text: str) -> Iterator[Json]:
        if self._kind != kind:
            yield from self._close()
            yield from self._open(kind)
        self._text += text
        if text:
            name = "output_text.delta" if kind == "message" else "reasoning_text.delta"
            yield self._of_part(name, delta=text)

    def _open(self, kind: str, call: ToolCall | None = None) -> Iterator[Json]:
        self._kind, self._text = kind, ""
        item = self._item("in_progress", call)
        if kind != "reasoning":
            item["arguments" if call else "content"] = "" if call else []
        yield self._event("output_item.added", output_index=len(self._items), item=item)
        if kind == "message":
            yield self._of_part("content_part.added", part=self._part())

    def _close(self, call: ToolCall | None = None) -> Iterator[Json]:
        """Complete the current item, if there is one, and yield the events that report its end."""
        if not self._kind:
            return
        if call:
            position = {"item_id": self._id(), "output_index": len(self._items)}
            delta, done = "function_call_arguments.delta", "function_call_arguments.done"
            yield self._event(delta, **position, delta=call.arguments)
            yield self._event(done, **position, name=call.name, arguments=call.arguments)
        elif self._kind == "message":
            yield self._of_part("output_text.done", text=self._text)
            yield self._of_part("content_part.done", part=self._part())
        else:
            yield self._of_part("reasoning_text.done", text=self._text)
        item = self._item("completed", call)
        yield self._event("output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._kind = ""

    def _item(self, status: str, call: ToolCall | None) -> Json:
        item: Json = {"id": self._id(), "type": self._kind, "status": status}
        if call:
            return item | {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        if self._kind == "reasoning":
            text = [{"type": "reasoning_text", "text": self._text}]
            return item | {"summary": [], "content": text if self._text else []}
        return item | {"role": "assistant", "content": [self._part()]}

    def _part(self) -> Json:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}

    def _id(self) -> str:
        begin = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[self._kind]
        return f"{begin}_{self.request_id}_{len(self._items)}"

    def _of_part(self, name: str, **fields: object) -> Json:
        logprobs: Json = {"logprobs": []} if name.startswith("output_text") else {}
        position = {"item_id": self._id(), "output_index": len(self._items), "content_index": 0}
        return self._event(name, **position, **fields, **logprobs)

    def _event(self, kind: str, **fields: object) -> Json:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}

    def _response(self, answer: Answer | None) -> Json:
        asked = self.asked.model_dump(exclude_none=True)
        cut = answer is not None and answer.finish is Finish.LENGTH
        status = "incomplete" if cut else "completed"
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": "in_progress" if answer is None else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "output": list(self._items) if answer else [],
            "parallel_tool_calls": self.parallel,
            "previous_response_id": None,
            "store": False,
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "text": {"format": asked.get("text", {}).get("format", {"type": "text"})},
            "metadata": {},
            "usage": None if answer is None else _usage(answer),
        }


def _usage(answer: Answer) -> Json:
    """Return the usage under the field names of `/v1/responses`. Reasoning tokens are not counted
    separately.
    """
    counted = usage([answer], 1)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
