"""A model's chat template: conversations to the text of a prompt, as `transformers` renders it.

Templates come with models, so they run in Jinja's sandbox and see plain values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.orchestrator.requests.request import ChatMessage, Conversation
from tandem.protos import gguf
from tandem.protos.errors import InvalidRequest, Unusable

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
SPECIAL = "special_tokens_map.json"
IN_GGUF = "tokenizer.chat_template"
OWN = ("messages", "tools", "documents", "add_generation_prompt")  # not a client's to set


class _Generation(ext.Extension):
    """`{% generation %}` marks what a model is trained on; its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Called by Jinja."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """Renders conversations; every one is refused if there is no template, or one that is broken.
    `special` are the texts of special tokens, by the names that templates know them by.
    """

    def __init__(self, source: str | None, special: Mapping[str, str]) -> None:
        self._source, self._special = source or "", dict(special)
        self._template: Template | None = None
        self.problem = "need a chat template, and the model has none"
        if source is None:
            return
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            self.problem = f"need a chat template, and the model's is broken: {error}"

    def render(self, conversation: Conversation) -> str:
        """The text of a prompt. Raises InvalidRequest for what the template refuses."""
        if self._template is None:
            raise InvalidRequest.of("messages", self.problem)
        arguments = dict(conversation.template_arguments)
        if taken := sorted(arguments.keys() & {*OWN, *self._special}):
            raise InvalidRequest.of(
                "messages.template_arguments", f"may not have {', '.join(taken)}"
            )
        messages = [_plain(message) for message in conversation.messages]
        try:
            return self._template.render(
                **self._special,
                **arguments,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=conversation.add_generation_prompt,
            )
        except Exception as error:  # a template is a program
            raise InvalidRequest.of("messages", self._reason(error)) from None

    def _reason(self, error: Exception) -> str:
        """Only a message that is written in the template: another may hold what a client wrote."""
        reason = str(error)
        known = isinstance(error, TemplateError) and reason and reason in self._source
        return "are refused by the chat template" + (f": {reason}" if known else "")


NO_TEMPLATE = ChatTemplate(None, {})


def load_chat_template(model: Path) -> ChatTemplate:
    """The template of a model directory or a GGUF file; raises Unusable for a file that cannot be
    read.
    """
    if gguf.is_gguf(model):
        metadata = gguf.metadata(model)
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        ids = {kind: metadata.get(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("bos", "eos")}
        known = {kind: number for kind, number in ids.items() if 0 <= number < len(tokens)}
        special = {f"{kind}_token": tokens[number] for kind, number in known.items()}
        return ChatTemplate(metadata.get(IN_GGUF), special)
    config = _json(model / SPECIAL) | _json(model / CONFIG)
    file = model / TEMPLATE
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    named = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    special = {name: text for name, text in named.items() if text}
    return ChatTemplate(source, special)


def _plain(message: ChatMessage) -> dict[str, str]:
    name = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": message.content} | name


def _json(file: Path) -> dict[str, Any]:
    """What a file holds; nothing if there is none. Raises Unusable."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _content(token: object) -> str:
    """A special token's text, as a configuration writes it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise(message: str) -> str:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
