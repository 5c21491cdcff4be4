"""Five minutes with Tandem: start it, stream three stories, sum up, stop it.

Drives the `tandem` command as a person would; `make demo` runs it.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TANDEM = [sys.executable, "-m", "tandem"]
STARTING_SECONDS = 120
FIGURES = re.compile(r"(\d+) tokens in (\d+) steps.*; (\d+) of (\d+) draft tokens accepted")
PROMPTS = (
    ("Once upon a time, there was a little girl named Lily. She", "0"),
    ("One day, a dog and a cat went to the park. They", "0.7"),
    ("The old man had a big red boat. Every morning, he", "1"),
)


@contextmanager
def running(mark: str) -> Iterator[str]:
    """Everything up, in the background; yields the address of the client API."""
    process = subprocess.Popen(
        [*TANDEM, "up", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TANDEM_DEMO": mark},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.search(r"client API on (\S+)\.", line):
                yield found[1]
                break
        else:
            raise SystemExit("error: Tandem did not come up")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STARTING_SECONDS)


def generate(address: str, prompt: str, *options: str) -> list[int]:
    """What one `tandem generate` prints, passed on as it comes; the figures of its last line."""
    command = [*TANDEM, "generate", "--address", address, "--max-new-tokens", "100"]
    environment = os.environ | {"FORCE_COLOR": "1"}
    printed = b""
    with subprocess.Popen(
        [*command, *options, prompt], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), 65536):
            printed += piece
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    if process.returncode or not (found := FIGURES.search(printed.decode())):
        raise SystemExit("error: the story was not told")
    return [int(figure) for figure in found.groups()]


def left_running(mark: str) -> list[str]:
    """Command lines of processes that carry the mark in their environment: everything that the demo
    started.
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
    """Start, tell three stories, sum up, stop."""
    began, mark = time.monotonic(), secrets.token_hex(8)
    with running(mark) as address:
        print(f"\n[up after {time.monotonic() - began:.0f} s]\n", flush=True)
        told = []
        for seed, (prompt, temperature) in enumerate(PROMPTS):
            told.append(
                generate(address, prompt, "--temperature", temperature, "--seed", str(seed))
            )
            print(flush=True)
        tokens, steps, accepted, drafted = map(sum, zip(*told, strict=True))
        print(
            f"Together: {tokens} tokens in {steps} steps, {tokens / steps:.2f} per step;", end=" "
        )
        print(f"{accepted} of {drafted} draft tokens accepted ({accepted / max(1, drafted):.0%}).")
        print("Green was drafted; all of it is what the target alone would have said.")
    if left := left_running(mark):
        raise SystemExit(f"error: {len(left)} processes are left: {left}")
    print("Stopped; no process is left.")


if __name__ == "__main__":
    main()
