"""`tandem chat` and the inputs of `tandem generate`, run as commands beside a whole system."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http_served import Door, serve_http, with_template
from tests.running_up import TANDEM
from tests.served import Pair, Services

PROMPT = "Once upon a time there was"


@pytest.fixture
async def door(services: Services, embedded: Pair, tmp_path: Path) -> AsyncIterator[Door]:
    async with serve_http(services, with_template(embedded.target, tmp_path)) as door:
        yield door


async def tandem(door: Door, *words: str, given: str = "") -> tuple[int, str, str]:
    """Run a command; return its exit code, standard output and standard error."""
    command, *arguments = words
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(*TANDEM, command, "--address", door.address, "--temperature", "0", *arguments),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    shown, problem = await process.communicate(given.encode())
    return process.returncode or 0, shown.decode(), problem.decode()


async def test_a_conversation_has_the_same_answers_with_and_without_drafts(door: Door) -> None:
    """The conversation comes from the lines of a file, and the command ends with them."""
    lines = "Hello\n/clear\n/plain\nHello\nAnd?"
    limit = ("--max-new-tokens", "12", "--ignore-eos")
    code, shown, problem = await tandem(door, "chat", "--system", "Tell.", *limit, given=lines)
    assert (code, problem) == (0, "")
    figures = r"12 tokens in [\d.]+ s, [\d.]+ tokens/s, [\d.]+ tokens per step; length"
    found = re.findall(rf"^(.*)\n(drafts|plain): {figures}$", shown, re.MULTILINE)
    (first, _), (second, _), _ = found
    assert first == second and [how for _, how in found] == ["drafts", "plain", "plain"]


async def test_a_prompt_is_read_from_a_file_or_from_standard_input(
    door: Door, tmp_path: Path
) -> None:
    """Standard error says why the answer ended."""
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    for options, why in ((("--ignore-eos",), "length"), (("--stop", " "), "stop, ' '")):
        asked = (*options, "--max-new-tokens", "5")
        expected = await tandem(door, "generate", *asked, PROMPT)
        assert (expected[0], expected[2]) == (0, f"ended: {why}\n")
        for prompt, given in ((f"@{file}", ""), ("-", PROMPT)):
            found = await tandem(door, "generate", *asked, prompt, given=given)
            assert found[2] == expected[2]
            assert found[1].splitlines()[0] == expected[1].splitlines()[0]
    code, _, problem = await tandem(door, "generate", f"@{file}.gone")
    assert code == 1 and "the prompt cannot be read: " in problem and f"{file}.gone" in problem
