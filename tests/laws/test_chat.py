"""What `tandem chat` remembers, what ends an answer, and what it prints about the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from rich.console import Console

from tandem.orchestrator.cli.chat import Talk
from tandem.orchestrator.cli.terminal import Completion
from tandem.protos.errors import Busy
from tandem.v1 import orchestrator_pb2 as api

STEPS = (("It", " is"), (" fine",), (".",))
FIGURES = r"4 tokens in [\d.]+ s, [\d.]+ tokens/s, 1.33 tokens per step; stop, token 7"


@dataclass
class Answer:
    """A stream with the same answer every time, unless it is told to raise an error."""

    raised: BaseException | None = None
    response: api.GenerateResponse | None = None
    closed: bool = False

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[api.Chunk]:
        for place, words in enumerate(STEPS):
            if place == 2 and self.raised:
                raise self.raised
            text = "".join(words)
            yield api.Chunk(text=text, content=text, token_ids=range(len(words)))
        reason = api.FINISH_REASON_STOP
        self.response = api.GenerateResponse(finish_reason=reason, matched_token_id=7)


@dataclass
class Asked:
    """A fake model that remembers what it was asked."""

    answers: list[Answer] = field(default_factory=list)
    messages: list[list[dict[str, str]]] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    shown: StringIO = field(default_factory=StringIO)
    raised: BaseException | None = None

    def __call__(self, messages: list[dict[str, str]], **options: Any) -> Answer:
        self.messages.append(messages)
        self.options.append(options)
        self.answers.append(Answer(self.raised))
        return self.answers[-1]

    def talk(self, system: str = "", terminal: bool = False) -> Talk:
        console = Console(file=self.shown, force_terminal=terminal, width=200, highlight=False)
        ask: Callable[..., Any] = self
        made = lambda: Completion(console, None, "")  # noqa: E731
        return Talk(ask, console, {"seed": 1}, system, completion=made)


def test_a_conversation_is_remembered_until_it_is_cleared() -> None:
    asked = Asked()
    talk = asked.talk("Be kind.")
    for line in ("Hello", "", "And?", "/clear", "Again"):
        assert talk.take(line)
    assert not talk.take(" /quit ")
    first, second, third = ["".join(each["role"][0] for each in m) for m in asked.messages]
    assert (first, second, third) == ("su", "suau", "su")
    assert asked.messages[1][2] == {"role": "assistant", "content": "It is fine."}


def test_each_answer_has_its_figures_and_drafts_can_be_switched_off() -> None:
    asked = Asked()
    talk = asked.talk()
    for line in ("Hello", "/plain", "Hello", "/drafts", "Hello", "/what"):
        talk.take(line)
    plain = {"seed": 1, "num_speculative_tokens": 0}
    assert asked.options == [{"seed": 1}, plain, {"seed": 1}]
    found = re.findall(rf"^(\w+): {FIGURES}$", asked.shown.getvalue(), re.MULTILINE)
    assert found == ["drafts", "plain", "drafts"]
    assert "/plain turns drafts off" in asked.shown.getvalue()


def test_what_drafts_gave_is_green_in_a_terminal_alone() -> None:
    for terminal in (True, False):
        asked = Asked()
        asked.talk(terminal=terminal).take("Hello")
        assert ("\x1b[32mIt is" in asked.shown.getvalue()) is terminal


def test_ctrl_c_ends_an_answer_which_is_remembered_as_far_as_it_came() -> None:
    asked = Asked(raised=KeyboardInterrupt())
    talk = asked.talk()
    assert talk.take("Hello") and asked.answers[0].closed
    assert "interrupted" in asked.shown.getvalue()
    assert talk.messages[-1] == {"role": "assistant", "content": "It is fine"}


def test_what_fails_is_one_line_and_is_not_remembered() -> None:
    asked = Asked(raised=Busy("full", 1.0))
    talk = asked.talk()
    assert talk.take("Hello") and talk.messages == []
    assert "\nerror: full" in asked.shown.getvalue()
