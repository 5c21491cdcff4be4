"""A model's chat template, which renders conversations into prompts as `transformers` does.

Templates are untrusted code from models, so they run in Jinja's sandbox on plain values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.orchestrator.requests.message import THINK, THOUGHT, Reading
from tandem.orchestrator.requests.request import ChatMessage, Conversation
from tandem.orchestrator.requests.tools import FORMATS, ToolFormat, format_of
from tandem.protos import gguf
from tandem.protos.errors import InvalidRequest, Unusable

CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
GGUF_TEMPLATE_KEY = "tokenizer.chat_template"
# template variables that clients may not set
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
OPTIONAL_FIELDS = ("name", "reasoning_content", "tool_call_id")  # fields that a message may lack
AUTO = "auto"  # setting that derives the format from the chat template
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG"  # marks the final message's end, as in transformers


@dataclass(frozen=True, slots=True)
class Formats:
    """The names of the formats in which the model writes tool calls and reasoning."""

    tools: str = AUTO
    reasoning: str = AUTO


DEFAULT_FORMATS = Formats()


class _Generation(ext.Extension):
    """Renders `{% generation %}` blocks as their content; the tag only matters for training."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse a `generation` tag and its content. Jinja calls this method."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """Renders conversations as prompts. Without a valid template, every conversation is refused.
    `special` maps names of special tokens, such as `bos_token`, to their text. `for_tools` is a
    separate template for conversations with tools, if the model has one.
    """

    def __init__(
        self,
        source: str | None,
        special: Mapping[str, str],
        formats: Formats = DEFAULT_FORMATS,
        for_tools: ChatTemplate | None = None,
    ) -> None:
        self._source = source or ""
        self._special = dict(special)
        self._for_tools = for_tools
        self._template: Template | None = None
        self.problem = "need a chat template, and the model has none"
        self.tools, self.tools_problem = self._tool_format(formats.tools)
        thinks = THINK in self._source or THOUGHT in self._source
        self._reasoning = thinks if formats.reasoning == AUTO else formats.reasoning == "think"
        if source is None:
            return
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            self.problem = f"need a chat template, and the model's is broken: {error}"

    def _tool_format(self, setting: str) -> tuple[ToolFormat | None, str]:
        """Return the format of tool calls, or None and the reason why tools are unsupported."""
        if setting == "none":
            return None, "are not supported: --tool-format is none"
        if setting != AUTO:
            return FORMATS[setting], ""
        if "tools" not in self._source:
            return None, "are not supported by the model's chat template"
        if found := format_of(self._source):
            return found, ""
        known = ", ".join(FORMATS)
        problem = "are not supported: the chat template does not show the format of calls"
        return None, f"{problem}; set --tool-format to one of {known}"

    def of(self, conversation: Conversation) -> ChatTemplate:
        """Return this template or, for a conversation with tools, the template for tools."""
        return self._for_tools if conversation.tools and self._for_tools else self

    def render(self, conversation: Conversation) -> str:
        """Render a conversation as a prompt. Raises InvalidRequest if the template fails."""
        if (other := self.of(conversation)) is not self:
            return other.render(conversation)
        if self._template is None:
            raise InvalidRequest.of("messages", self.problem)
        arguments = dict(conversation.template_arguments)
        if taken := sorted(arguments.keys() & {*RESERVED, *self._special}):
            raise InvalidRequest.of(
                "messages.template_arguments", f"may not have {', '.join(taken)}"
            )
        if conversation.tools and not self.tools and conversation.tool_choice == "auto":
            raise InvalidRequest.of("messages.tools", self.tools_problem)
        messages = [_plain(message) for message in conversation.messages]
        if conversation.continue_final_message:
            messages[-1]["content"] = f"{messages[-1]['content']}{END_MARK} "
        try:
            text = self._template.render(
                **self._special,
                **arguments,
                messages=messages,
                tools=[tool.plain() for tool in conversation.tools] or None,
                documents=None,
                add_generation_prompt=conversation.add_generation_prompt,
            )
        except Exception as error:  # a template is a program that can raise any error
            raise InvalidRequest.of("messages", self._reason(error)) from None
        return _cut(text) if conversation.continue_final_message else text

    def reading(self, conversation: Conversation, prompt_end: str) -> Reading:
        """Return the parser settings for the answer to a prompt that ends with `prompt_end`."""
        if (other := self.of(conversation)) is not self:
            return other.reading(conversation, prompt_end)
        names = [tool.name for tool in conversation.tools]
        if conversation.tool_choice != "auto":  # a grammar allows only tool calls
            return Reading(FORMATS["json"], names, conversation.parallel_tool_calls)
        return Reading(
            self.tools if names else None,
            names,
            conversation.parallel_tool_calls,
            self._reasoning,
            self._reasoning and prompt_end.rstrip().endswith(THINK),
            tuple(tool.name for tool in conversation.tools if tool.strict),
        )

    def _reason(self, error: Exception) -> str:
        """Say why the template failed, without quoting errors that might reveal the prompt."""
        reason = str(error)
        known = isinstance(error, TemplateError) and reason and reason in self._source
        return "are refused by the chat template" + (f": {reason}" if known else "")


NO_TEMPLATE = ChatTemplate(None, {})


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _cut(text: str) -> str:
    """Remove everything after the final message from a prompt. Spaces at the end of the message are
    kept if the template kept them. Raises InvalidRequest if the prompt lacks the message.
    """
    before, cut, after = text.rpartition(END_MARK)
    if not cut:
        problem = "cannot be true: the chat template leaves the final message out"
        raise InvalidRequest.of("messages.continue_final_message", problem)
    return before if after.startswith(" ") else before.rstrip()


def load_chat_template(model: Path, formats: Formats = DEFAULT_FORMATS) -> ChatTemplate:
    """Load the chat template of a model directory or a GGUF file. Raises Unusable if a file cannot
    be read.
    """
    if gguf.is_gguf(model):
        metadata = gguf.metadata(model)
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        ids = {kind: metadata.get(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("bos", "eos")}
        known = {kind: number for kind, number in ids.items() if 0 <= number < len(tokens)}
        special = {f"{kind}_token": tokens[number] for kind, number in known.items()}
        return ChatTemplate(metadata.get(GGUF_TEMPLATE_KEY), special, formats)
    config = _json(model / SPECIAL_TOKENS_FILE) | _json(model / CONFIG_FILE)
    file = model / TEMPLATE_FILE
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    with_tools = None
    if isinstance(source, list):  # several templates, each with a name
        named = {each["name"]: each["template"] for each in source}
        source, with_tools = named.get("default"), named.get("tool_use")
    texts = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    special = {name: text for name, text in texts.items() if text}
    for_tools = ChatTemplate(with_tools, special, formats) if with_tools else None
    return ChatTemplate(source, special, formats, for_tools)


def _plain(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates expect it: call arguments are objects, not text."""
    given = {name: getattr(message, name) for name in OPTIONAL_FIELDS}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.loads(call.arguments)},
        }
        for call in message.tool_calls
    ]
    known: dict[str, Any] = {name: text for name, text in given.items() if text}
    if message.reasoning_content:
        known["thinking"] = message.reasoning_content  # some templates use this name
    if calls:
        known["tool_calls"] = calls
    return {"role": message.role, "content": message.content} | known


def _json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if there is no such file. Raises Unusable."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _content(token: object) -> str:
    """Return a special token's text, which a configuration gives as a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Write a value as JSON, without the HTML escapes that Jinja's own filter adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise(message: str) -> str:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
