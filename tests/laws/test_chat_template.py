"""Chat templates render as in `transformers`, and can do no more than that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tandem import models
from tandem.orchestrator.requests.chat import ChatTemplate, Formats, load_chat_template
from tandem.orchestrator.requests.message import Reading
from tandem.orchestrator.requests.request import ChatMessage, Conversation, Tool, ToolCall
from tandem.orchestrator.requests.tools import FORMATS
from tandem.protos.errors import InvalidRequest

TALK = (
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "  Is 1 < 2 & 'so'?\n"),
    ChatMessage("assistant", "Yes."),
    ChatMessage("user", 'Ünicode "quoted" {{ 1 }}', "ann"),
)
TEMPLATES = {
    "chatml": """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nhelp<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "namespace": """{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{{- bos_token ~ messages[ns.last].content.strip() ~ ns.last ~ eos_token }}
{%- if tools is not none %}tools{% endif %}""",
    "filters": """{{ messages | tojson }}|{{ messages[1] | tojson(indent=2) }}
{% for message in messages %}{% if loop.index == 3 %}{% break %}{% endif %}
{% generation %}{{ message.content | trim | upper }}{% endgeneration %}
{% endfor %}{{ enable_thinking }}""",
    "names": "{% for m in messages %}{{ m.name if m.name is defined else '-' }} {% endfor %}",
}


def folder_with(folder: Path, template: Any, file: str = "tokenizer_config.json") -> Path:
    """Write a folder with the embedded tokenizer, a template and special tokens."""
    shutil.copy(models.TARGET / "tokenizer.json", folder)
    config = json.loads((models.TARGET / "tokenizer_config.json").read_text())
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    config["bos_token"] = {"__type": "AddedToken", "content": "<|endoftext|>"} | flags
    if file == "tokenizer_config.json":
        config["chat_template"] = template
    else:
        (folder / file).write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_writes_what_transformers_has_it_write(
    name: str, file: str, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, TEMPLATES[name], file)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = [
        {"role": each.role, "content": each.content} | ({"name": each.name} if each.name else {})
        for each in TALK
    ]
    template = load_chat_template(folder)
    for prompt in (True, False):
        wanted = tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=prompt, enable_thinking=False
        )
        found = template.render(Conversation(TALK, prompt, {"enable_thinking": False}))
        assert found == wanted


def test_of_several_templates_the_default_one_is_used(tmp_path: Path) -> None:
    named = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "{{ messages[0].content }}"},
    ]
    assert (
        load_chat_template(folder_with(tmp_path, named)).render(Conversation(TALK)) == "Be brief."
    )


def refused(template: str | None, **arguments: str) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(template, {"bos_token": "<s>"}).render(Conversation(TALK, True, arguments))
    return str(refusal.value)


def test_without_a_template_a_chat_is_refused() -> None:
    assert refused(None) == "messages need a chat template, and the model has none"
    assert "broken" in refused("{% if %}")
    template = load_chat_template(models.TARGET)
    with pytest.raises(InvalidRequest, match="need a chat template"):
        template.render(Conversation(TALK))


def test_a_templates_own_words_are_passed_on_but_never_those_of_a_client() -> None:
    own = refused("{{ raise_exception('Roles must alternate.') }}")
    assert own == "messages are refused by the chat template: Roles must alternate."
    leak = refused("{{ raise_exception('No: ' + messages[1].content) }}")
    assert leak == "messages are refused by the chat template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ range(10 ** 9) }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content.x }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_does_no_harm(template: str) -> None:
    assert refused(template).startswith("messages are refused by the chat template")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_what_a_template_gets_from_the_server_is_not_a_clients_to_set(name: str) -> None:
    assert refused("", **{name: "x"}) == f"messages.template_arguments may not have {name}"


WEATHER = Tool(
    "weather", "of a city", {"type": "object", "properties": {"city": {"default": None}}}
)
USED = (
    ChatMessage("user", "How is it?"),
    ChatMessage(
        "assistant", "", "", "Hm.", (ToolCall("weather", '{"city": "Zürich"}', "abc123def"),)
    ),
    ChatMessage("tool", "Rain", tool_call_id="abc123def"),
    ChatMessage("assistant", " It rains. ", reasoning_content="So."),
)
WITH_TOOLS = """{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}
{% for m in messages %}
{{ m.role }}: {{ m.content }}<think>{{ m.reasoning_content }}{{ m.thinking }}</think>
{%- for call in m.tool_calls or [] %}{{ call.id }}{{ call | tojson }}
{{- call.function.arguments.city }}{% endfor %}
{{- m.tool_call_id }}.
{% endfor %}"""


def plain_of(messages: tuple[ChatMessage, ...]) -> list[dict[str, Any]]:
    """Return messages in the form that `transformers` takes."""
    found = []
    for each in messages:
        plain: dict[str, Any] = {"role": each.role, "content": each.content}
        if each.reasoning_content:
            plain["reasoning_content"] = each.reasoning_content
        if each.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in each.tool_calls
            ]
        if each.tool_call_id:
            plain["tool_call_id"] = each.tool_call_id
        found.append(plain)
    return found


@pytest.mark.parametrize("continued", [True, False])
@pytest.mark.parametrize("strip", ["", " | trim"])
def test_tools_and_their_use_are_written_as_transformers_has_them(
    tmp_path: Path, strip: str, continued: bool
) -> None:
    """A final message is continued as in `transformers`, whatever white space it ends with."""
    source = WITH_TOOLS.replace("m.content", f"m.content{strip}")
    folder = folder_with(tmp_path, [{"name": "default", "template": "{{ messages[0].content }}"}])
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"].append({"name": "tool_use", "template": source})
    file.write_text(json.dumps(config))
    wanted = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        plain_of(USED),
        tools=[WEATHER.plain()],
        tokenize=False,
        continue_final_message=continued,
    )
    asked = Conversation(USED, False, {}, (WEATHER,), continue_final_message=continued)
    template = load_chat_template(folder)
    assert template.render(asked) == wanted
    assert template.render(Conversation(USED)) == "How is it?", "without tools"
    assert template.reading(asked, "") == Reading(FORMATS["hermes"], ["weather"], True, True)


def test_a_final_message_that_is_left_out_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="continue_final_message cannot be true: the chat"):
        ChatTemplate("hello", {}).render(Conversation(TALK, False, continue_final_message=True))


@pytest.mark.parametrize(
    ("template", "setting", "problem"),
    [
        ("{{ messages }}", "auto", "are not supported by the model's chat template"),
        ("{{ tools }}", "auto", "are not supported: the chat template does not show"),
        ("{{ tools }}<tool_call>", "none", "are not supported: --tool-format is none"),
    ],
)
def test_tools_are_refused_by_name_where_calls_could_not_be_found(
    template: str, setting: str, problem: str
) -> None:
    chat, asked = ChatTemplate(template, {}, Formats(setting)), Conversation(TALK, tools=(WEATHER,))
    with pytest.raises(InvalidRequest, match=f"^messages.tools {problem}"):
        chat.render(asked)
    assert ChatTemplate(template, {}, Formats("json")).render(asked)


@pytest.mark.parametrize(
    ("template", "setting", "end", "found"),
    [
        ("<think>", "auto", "", (True, False)),
        ("{{ x }}</think>", "auto", "assistant<think>\n", (True, True)),
        ("<think>", "auto", "<think>\n\n</think>\n\n", (True, False)),
        ("<think>", "none", "<think>", (False, False)),
        ("", "auto", "<think>", (False, False)),
        ("", "think", "<think>", (True, True)),
    ],
)
def test_reasoning_is_looked_for_if_the_template_knows_it(
    template: str, setting: str, end: str, found: tuple[bool, bool]
) -> None:
    reading = ChatTemplate(template, {}, Formats(reasoning=setting)).reading(Conversation(()), end)
    assert (reading.reasoning, reading.reasoning_begun) == found
