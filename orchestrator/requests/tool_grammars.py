"""Generate grammars for answers that must call a tool, or that may call strict tools.

The module is pure. The grammars are written in Lark. A grammar contains the schema of each tool's
arguments as a separate document, so references within a schema stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tandem.orchestrator.requests.chat import ChatTemplate
from tandem.orchestrator.requests.request import Conversation, Request, Tool
from tandem.orchestrator.requests.tools import ToolFormat, head_of
from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import STYLE, Grammar, GrammarKind

AUTO, REQUIRED = "auto", "required"  # any other `tool_choice` is the name of a tool
TEXT = r"/(.|\n)*/"
ANY = {"type": "object"}
NO_TOKENS: Mapping[str, int] = {}


def with_calls(
    request: Request, chat: ChatTemplate, special: Mapping[str, int] = NO_TOKENS
) -> Request:
    """Return the request with the grammar that the tools of its conversation require. Unless a call
    is required, the grammar uses the tool format of the chat template `chat`. `special` maps
    special tokens to their ids. Raises InvalidRequest for a tool choice that cannot be satisfied.
    """
    conversation = request.prompt
    if not isinstance(conversation, Conversation):
        return request
    names = [tool.name for tool in conversation.tools]
    if conversation.tool_choice not in (AUTO, REQUIRED, *names):
        problem = f"is {conversation.tool_choice!r}, which is none of the tools"
        raise InvalidRequest.of("messages.tool_choice", problem)
    if not names:
        if conversation.tool_choice == REQUIRED:
            raise InvalidRequest.of("messages.tool_choice", "needs tools")
        return request
    grammar = grammar_of(conversation, chat.of(conversation).tools, special)
    if grammar and request.sampling.grammar:
        problem = "with strict or required calls cannot be combined with a grammar of the answer"
        raise InvalidRequest.of("messages.tools", problem)
    if not grammar:
        return request
    return replace(request, sampling=replace(request.sampling, grammar=grammar))


def grammar_of(
    conversation: Conversation, form: ToolFormat | None, special: Mapping[str, int] = NO_TOKENS
) -> Grammar | None:
    """Return the grammar of an answer; None if the answer needs no grammar. If a tool must be
    called, the grammar allows one or more calls, each on its own line. Otherwise, if a tool is
    strict, the grammar allows any text, with or without calls in the model's own format, `form`.
    Raises InvalidRequest for strict tools if `form` is not bare and has no marker for the end of a
    call.
    """
    tools, choice = conversation.tools, conversation.tool_choice
    if choice not in (AUTO, REQUIRED):
        return _lark("start: call", [tool for tool in tools if tool.name == choice])
    if choice == REQUIRED:
        more = r' ("\n" call)*' if conversation.parallel_tool_calls else ""
        return _lark(f"start: call{more}", tools)
    strict = {index: tool for index, tool in enumerate(tools) if tool.strict}
    if not strict or form is None:
        return None
    if form.bare:
        return _headed(list(strict.values()), special.get(form.begin))
    if not form.end:
        problem = (
            "cannot be true with tool_choice auto: "
            f"format {form.name} has no marker for the end of a tool call"
        )
        raise InvalidRequest.of(f"messages.tools[{min(strict)}].strict", problem)
    begin, end = json.dumps(form.begin), json.dumps(f"\n{form.end}")
    rules = f"start: marked* text\ntext: TEXT\nbegin[lazy]: TEXT {begin}\nTEXT: {TEXT}"
    return _lark(f'{rules}\nmarked: begin "\\n" call {end}', tools)


def _headed(tools: Sequence[Tool], marker: int | None) -> Grammar:
    """Return a grammar that allows any text. However, where the text contains the beginning of a
    call of one of the tools, only valid arguments may follow. `marker` is the id of a special
    token. Since text rules cannot match special tokens, the grammar has a separate rule for the
    marker.
    """
    numbers = range(len(tools))
    parts = [f"call_{number}" for number in numbers]
    if marker is not None:
        parts.append(f"TEXT? <[{marker}]>")
    rules = ["start: part* TEXT?", f"part: {' | '.join(parts)}", f"TEXT: {TEXT}", r"BLANK: /\s+/"]
    for number, tool in zip(numbers, tools, strict=True):
        rules.append(f"head_{number}[lazy]: TEXT /{head_of(tool.name)}/")
        rules.append(f'call_{number}: head_{number} BLANK? {_arguments(tool)} BLANK? "}}"')
    return Grammar(GrammarKind.LARK, "\n".join(("%llguidance {}", *rules, "")))


def _lark(start: str, tools: Sequence[Tool]) -> Grammar:
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    calls = "\n".join(f"call_{number}: {_call(tool)}" for number, tool in enumerate(tools))
    return Grammar(GrammarKind.LARK, f"%llguidance {{}}\n{start}\ncall: {names}\n{calls}\n")


def _call(tool: Tool) -> str:
    head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
    return f'{json.dumps(head)} {_arguments(tool)} "}}"'


def _arguments(tool: Tool) -> str:
    return f"%json {json.dumps(dict(tool.parameters or ANY) | {'x-guidance': STYLE})}"
