"""The command `tandem chat`: a conversation in a terminal, with the speed of each answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from tandem import models
from tandem.client import SyncStream
from tandem.orchestrator.cli import flags, terminal
from tandem.orchestrator.cli.flags import FrontEnd
from tandem.orchestrator.cli.terminal import Completion, ended
from tandem.protos.errors import TandemError

HELP = (
    "Type a message. Ctrl-C stops an answer, /clear forgets the conversation, /quit ends it.\n"
    "Text of accepted draft tokens is green. /plain turns drafts off and /drafts on again.\n"
    "To watch what drafts gain, run `tandem top` in another terminal."
)
ASKS = "> "  # prompt that is shown before the user's input
Message = dict[str, str]
Ask = Callable[..., SyncStream]


@dataclass
class Talk:
    """One conversation. `ask` sends the messages with the request's `options` and returns the
    stream of the answer.
    """

    ask: Ask
    console: Console
    options: dict[str, Any]
    system: str = ""
    completion: Callable[[], Completion] = field(kw_only=True)
    plain: bool = False
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all messages except the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def take(self, line: str) -> bool:
        """Process one line of input, which is a command or a message to the model. Returns False if
        the line is `/quit`.
        """
        match line.strip():
            case "":
                pass
            case "/quit":
                return False
            case "/clear":
                self.clear()
            case "/plain" | "/drafts" as command:
                self.plain = command == "/plain"
            case text if text.startswith("/"):
                self._say(HELP)
            case text:
                self._answer(text)
        return True

    def _answer(self, text: str) -> None:
        """Send the message `text` to the model, and print the answer and its speed. If the request
        fails, the conversation keeps neither the message nor the answer. If the user interrupts the
        answer, the conversation keeps the message and the part of the answer that has arrived.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        options = self.options | ({"num_speculative_tokens": 0} if self.plain else {})
        shown, tokens, steps, content = self.completion(), 0, 0, ""
        began, why = time.monotonic(), "interrupted"
        try:
            with suppress(KeyboardInterrupt), self.ask(asked, **options) as stream:
                for chunk in stream:
                    shown.show(chunk)
                    tokens, steps = tokens + len(chunk.token_ids), steps + 1
                    content += chunk.content
                assert stream.response is not None, "a stream that ends without a response raises"
                why = ended(stream.response)
        except TandemError as problem:
            if steps:
                self._say("")  # ends the line of the partial answer
            return self._say(f"error: {problem}", "red")
        self.messages = [*asked, {"role": "assistant", "content": content}]
        seconds = time.monotonic() - began
        how = "plain" if self.plain else "drafts"
        figures = f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s"
        self._say(f"\n{how}: {figures}, {tokens / max(1, steps):.2f} tokens per step; {why}")

    def _say(self, line: str, style: str = "dim") -> None:
        self.console.print(Text(line, style=style), soft_wrap=True)


def lines() -> Iterator[str]:
    """Yield the lines of standard input. In a terminal, the user can edit a line and recall earlier
    lines. Ctrl-C discards the line that the user is typing.
    """
    with suppress(ImportError):
        import readline  # noqa: F401  # makes `input` edit lines
    while True:
        with suppress(KeyboardInterrupt):
            try:
                yield input(ASKS if sys.stdin.isatty() else "")
            except EOFError:
                return


def chat(front_end: FrontEnd, system: str, options: dict[str, Any]) -> int:
    """Answer the user's messages until `/quit` or the end of the input, and return exit code 0.
    Raises TandemError if the front end does not answer at the start.
    """
    given = {"max_new_tokens": flags.CHAT_MAX_NEW_TOKENS} | flags.given(options)
    console = terminal.console()
    with front_end.connect_sync() as client:
        (model,) = client.status().models
        tokenizer = terminal.matching_tokenizer(models.TARGET, model.tokenizer_fingerprint)
        talk = Talk(
            client.stream,
            console,
            given,
            system,
            completion=lambda: Completion(console, tokenizer, ""),
        )
        if sys.stdin.isatty():
            console.print(Text(f"{model.name}\n{HELP}", style="dim"), soft_wrap=True)
        for line in lines():
            if not talk.take(line):
                break
    return 0
