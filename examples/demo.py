"""Five minutes with Tandem: start it, stream three stories, sum up, stop it.

Drives the `tandem` command as a person would; `make demo` runs it.
"""

from __future__ import annotations

import json
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


def generate(address: str, prompt: str, *options: str) -> subprocess.CompletedProcess[str]:
    """One `tandem generate`."""
    captured = subprocess.PIPE if "--json" in options else None
    command = [
        *TANDEM,
        "generate",
        "--address",
        address,
        "--max-new-tokens",
        "100",
        *options,
        prompt,
    ]
    return subprocess.run(
        command, stdout=captured, text=True, check=True, env=os.environ | {"FORCE_COLOR": "1"}
    )


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
        steps = drafted = accepted = tokens = 0
        for seed, (prompt, temperature) in enumerate(PROMPTS):
            options = ("--temperature", temperature, "--seed", str(seed))
            generate(address, prompt, *options)
            print(flush=True)
            answer = json.loads(generate(address, prompt, *options, "--json").stdout)
            steps += answer["speculation"]["numSpecSteps"]
            drafted += answer["speculation"]["numDraftTokens"]
            accepted += answer["speculation"]["numAcceptedDraftTokens"]
            tokens += answer["usage"]["completionTokens"]
        print(
            f"Together: {tokens} tokens in {steps} steps, {tokens / steps:.2f} per step;",
            end=" ",
        )
        print(f"{accepted} of {drafted} draft tokens accepted ({accepted / max(1, drafted):.0%}).")
        print(
            "Green was guessed by the drafter; all of it is what the target alone would have said."
        )
    if left := left_running(mark):
        raise SystemExit(f"error: {len(left)} processes are left: {left}")
    print("Stopped; no process is left.")


if __name__ == "__main__":
    main()
