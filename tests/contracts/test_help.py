"""The output of `--help` fits a terminal of 80 columns and shows the whole name of every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tandem.benchmarks.chaos.__main__ import app as chaos
from tandem.benchmarks.serve.__main__ import app as serve
from tandem.models.distil.__main__ import app as distil
from tandem.orchestrator.cli import flags
from tandem.orchestrator.cli.app import app
from tandem.orchestrator.requests.request import DEFAULT_MAX_NEW_TOKENS


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Return a command and all its subcommands."""
    yield command, words
    for name, each in getattr(command, "commands", {}).items():
        if "ignore_unknown_options" not in each.context_settings:  # the command has its own help
            yield from commands(each, (*words, name))


ALL = [
    pytest.param(own, command, words, id=" ".join((name, *words)))
    for name, own in (("tandem", app), ("chaos", chaos), ("distil", distil), ("serve", serve))
    for command, words in commands(typer.main.get_command(own))
]


@pytest.mark.parametrize(("own", "command", "words"), ALL)
def test_help_has_the_whole_name_of_every_option(
    own: typer.Typer, command: Any, words: tuple[str, ...]
) -> None:
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
    shown = runner.invoke(own, [*words, "--help"])
    assert shown.exit_code == 0
    names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    options = {name for name in names if name.startswith("--")}
    printed = shown.output.replace(",", " ").replace("/", " ").split()
    assert options <= set(printed)
    assert max(map(len, shown.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "tokens"),
    [("generate", DEFAULT_MAX_NEW_TOKENS), ("chat", flags.CHAT_MAX_NEW_TOKENS)],
)
def test_help_names_the_default_length_of_answers(command: str, tokens: int) -> None:
    shown = CliRunner(env={"TERM": "dumb"}).invoke(app, [command, "--help"])
    assert f"maximum number of tokens of the answer; default {tokens}" in " ".join(
        shown.output.split()
    )
