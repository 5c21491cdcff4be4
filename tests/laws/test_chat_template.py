"""Chat templates write what `transformers` has them write, and can do no more than that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tandem import models
from tandem.orchestrator.requests.chat import ChatTemplate, load_chat_template
from tandem.orchestrator.requests.request import ChatMessage, Conversation
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
    """The embedded tokenizer with a template, and special tokens."""
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
