"""Create pictures of the demo, `tandem top` and the status page for the documentation.

`make recordings` runs this program, which needs Chromium. The pictures are in docs/recordings: SVG
files of the terminal's output, and a PNG file of the status page.
"""

from __future__ import annotations

import os
import pty
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import count, cycle
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.demo import STORIES, TANDEM, grown, running
from tandem import Client

FOLDER = Path(__file__).parents[1] / "docs" / "recordings"
COLUMNS = 110
FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # CSS rules that load fonts from other servers
LOAD_SECONDS = 90.0  # seconds of load before `tandem top` is recorded
CLIENTS = 3
BROWSER = "chromium"
PAGE = 1280, 1000  # width and height of the status page's picture in pixels
UP = "Tandem was up"  # the demo prints this line after it has started its services


def printed(command: list[str]) -> str:
    """Run a command in a terminal and return its output. Raises CalledProcessError if the command
    fails.
    """
    ours, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "50"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # on Linux, reading past a terminal's end raises an error
            while part := os.read(ours, 1 << 16):
                shown += part
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, shown)
    return shown.decode().replace("\r\n", "\n")


def picture(text: str, title: str) -> str:
    """Return an SVG picture of a terminal that shows a text with ANSI colours."""
    console = Console(file=StringIO(), record=True, width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(text))
    return FONTS.sub("", console.export_svg(title=title))


@contextmanager
def load(address: str) -> Iterator[None]:
    """Generate load inside this context: a few clients request one story after another."""
    over, seeds = threading.Event(), count()

    def ask() -> None:
        with Client(address) as client:
            for prompt, temperature in cycle(STORIES):
                if over.is_set():
                    return
                client.generate(
                    prompt, temperature=temperature, seed=next(seeds), max_new_tokens=100
                )

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def photograph(url: str, file: Path) -> None:
    """Save a screenshot of a web page as a PNG file."""
    shown = [f"--window-size={','.join(map(str, PAGE))}", "--hide-scrollbars"]
    quiet = ["--headless", "--no-sandbox", "--disable-gpu"]
    subprocess.run([BROWSER, *quiet, *shown, f"--screenshot={file}", url], check=True)


def main() -> None:
    """Create all pictures. The picture of the demo omits the output before its services have
    started.
    """
    if not shutil.which(BROWSER):
        raise SystemExit(f"error: {BROWSER} is required for screenshots, but is not installed")
    FOLDER.mkdir(exist_ok=True)
    demo = printed([sys.executable, "-m", "examples.demo"])
    with running(secrets.token_hex(8), grown()) as (address, page), load(address):
        time.sleep(LOAD_SECONDS)
        photograph(page, FOLDER / "page.png")
        top = printed([*TANDEM, "top", "--once", "--address", address])
    demo = demo[demo.index(UP) :]
    for name, title, text in (("demo", "make demo", demo), ("top", "tandem top", top)):
        (FOLDER / f"{name}.svg").write_text(picture(text, title), encoding="utf-8")


if __name__ == "__main__":
    main()
