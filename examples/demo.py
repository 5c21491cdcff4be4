"""A first look at Tandem: generate stories with and without drafts, and compare both speeds.

The target is the embedded model, enlarged until its steps are slow enough for drafts to save time.
`make demo` runs the demo.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tandem import Client, models
from tandem.orchestrator.cli.terminal import Completion, console
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api

TANDEM = [sys.executable, "-m", "tandem"]
GROWN = Path(__file__).parents[1] / "build" / "grown"
STOPPING_SECONDS = 120
TOKENS = 120  # maximum tokens per story
STORIES = (  # beginnings of stories, and their temperatures
    ("Once upon a time, there was a little girl named Lily. She", 0.0),
    ("The old man had a big red boat. Every morning, he", 0.0),
    ("One day, a dog and a cat went to the park. They", 0.7),
    ("Tom found a small box under the tree. In the box", 1.0),
)
FIRST = "It was a sunny day."  # warm-up prompt, from which the services learn how long steps take
MEASURED = (
    "Each request ran with drafts first, then without, one at a time on this machine. Drafts from"
    " recent answers were off, because the verifier would have copied the first answer."
)


@dataclass(frozen=True)
class Story:
    """One story: the response with drafts, and the response without drafts."""

    temperature: float
    drafted: api.GenerateResponse
    plain: api.GenerateResponse


def grown() -> Path:
    """Return the embedded target, enlarged to 110 million parameters. The enlarged model is created
    once, in build/, and used again by later runs.

    The enlarged model writes the same texts as the embedded target, but its steps take as long as
    those of a model of that size.
    """
    source = max(path.stat().st_mtime for path in models.TARGET.iterdir())
    if GROWN.is_dir() and GROWN.stat().st_mtime > source:
        return GROWN
    print("Growing the embedded target to 110 million parameters (440 MB in build/) ...")
    part = GROWN.with_suffix(".part")
    for old in (part, GROWN):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-m", "tandem.models.grow", str(models.TARGET), str(part)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return part.rename(GROWN)


@contextmanager
def running(mark: str, target: Path) -> Iterator[tuple[str, str]]:
    """Run `tandem up` inside this context. Yields the address of the client API and the URL of the
    status page.
    """
    settings = {"TANDEM_DEMO": mark, "TANDEM__VERIFIER__RECENT_TOKENS": "0"}
    pair = ["--target", os.path.relpath(target), "--draft", os.path.relpath(models.DRAFT)]
    words = ["up", "--no-ray", "--port", "0", *pair]
    process = subprocess.Popen(
        [*TANDEM, *words], stdout=subprocess.PIPE, text=True, env=os.environ | settings
    )
    assert process.stdout is not None
    address = ""
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.search(r"client API on (\S+)\.", line):
                address = found[1]
            if found := re.search(r"Status page: (\S+)", line):
                yield address, found[1]
                break
        else:
            raise SystemExit("error: Tandem did not start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOPPING_SECONDS)


def run_story(client: Client, screen: Console, prompt: str, temperature: float) -> Story:
    """Stream a story with drafts, run the same request without drafts, and print both speeds."""
    options = {"temperature": temperature, "seed": 1, "max_new_tokens": TOKENS}
    screen.print(f"\n[bold]Temperature {temperature:g}[/]")
    shown = Completion(screen, load_tokenizer(models.TARGET), prompt)
    with client.stream(prompt, **options) as stream:
        for chunk in stream:
            shown.show(chunk)
    assert stream.response is not None, "a stream without an error ends with a response"
    drafted = stream.response
    screen.print(f"\n[dim]with drafts {speed([drafted]):.0f} tokens/s, without[/]", end="")
    plain = client.generate(prompt, num_speculative_tokens=0, **options)
    ratio = speed([drafted]) / speed([plain])
    screen.print(f"[dim] {speed([plain]):.0f} tokens/s:[/] {ratio:.2f} times as fast")
    return Story(temperature, drafted, plain)


def speed(answers: Sequence[api.GenerateResponse]) -> float:
    """Return the tokens per second of responses that were generated one after the other."""
    seconds = sum(each.timing.total_seconds for each in answers)
    return sum(each.usage.completion_tokens for each in answers) / seconds


def table(stories: Sequence[Story]) -> Table:
    """Return a table that compares all stories with and without drafts, by temperature."""
    shown = Table("temperature", box=None)
    for name in (
        "tokens",
        "without\ntokens/s",
        "with drafts\ntokens/s",
        "ratio",
        "tokens\nper step",
        "text",
    ):
        shown.add_column(name, justify="right")
    for temperature in (*dict.fromkeys(each.temperature for each in stories), None):
        some = [each for each in stories if temperature in (None, each.temperature)]
        drafted, plain = [each.drafted for each in some], [each.plain for each in some]
        tokens = sum(each.usage.completion_tokens for each in drafted)
        steps = sum(each.speculation.num_spec_steps for each in drafted)
        differing = sum(one.text != other.text for one, other in zip(drafted, plain, strict=True))
        shown.add_row(
            "all" if temperature is None else f"{temperature:g}",
            *(str(tokens), f"{speed(plain):.1f}", f"{speed(drafted):.1f}"),
            *(f"[bold]{speed(drafted) / speed(plain):.2f}[/]", f"{tokens / steps:.2f}"),
            f"{differing} differ" if differing else "the same",
        )
    return shown


def left_running(mark: str) -> list[str]:
    """Return the command lines of the demo's processes that still run. Every process that the demo
    starts has `mark` in its environment.
    """
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and folder.name != str(
                os.getpid()
            ):
                lines.append(
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return lines


def main() -> None:
    """Enlarge the target, start Tandem, generate stories with and without drafts, compare their
    speed, and stop Tandem.
    """
    mark, target, screen = secrets.token_hex(8), grown(), console()
    began = time.monotonic()
    with running(mark, target) as (address, _), Client(address) as client:
        screen.print(f"\nTandem was up after {time.monotonic() - began:.0f} s.", end=" ")
        screen.print("[green]Green[/] text is what drafts brought." if screen.is_terminal else "")
        for levels in (None, 0):
            client.generate(FIRST, max_new_tokens=TOKENS // 4, num_speculative_tokens=levels)
        stories = [run_story(client, screen, *story) for story in STORIES]
        screen.print()
        screen.print(table(stories))
        screen.print(f"\n{MEASURED}")
    if left := left_running(mark):
        raise SystemExit(f"error: {len(left)} processes are left: {left}")
    print("Stopped; no process is left.")


if __name__ == "__main__":
    main()
