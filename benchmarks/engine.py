"""Step times of the engine on one model, exact and fast, beside transformers.

All that is compared takes turns in one run. The floor is the time that the same threads need to
read the weights once: no step that reads them is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from rich.console import Group
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

import models
from benchmarks import report
from benchmarks.figures import (
    COMPARED,
    FIVE,
    FLOOR,
    LIBRARY,
    ONE,
    TOGETHER,
    TYPICAL,
    Figures,
    chosen,
)
from benchmarks.machine import described
from benchmarks.steps import Engine, Feed, Library, Text, reading, timed, weights_read
from engine.exactness import positions_tried, self_test
from engine.forward import Forward
from engine.kv import position_bytes
from engine.model import DTYPES, load
from models.grow import Shape, grow
from protos import tree
from protos.errors import TandemError

FEEDS = (
    ONE,
    FIVE,
    Feed(1, tree.chain(9)),
    Feed(1, tree.chain(17)),
    Feed(1, tree.hang(1, TYPICAL)),
    Feed(1, tree.chain(33)),
    Feed(8, tree.chain(5)),
    TOGETHER,
)
EXACT, FAST = "exact", "fast"
MODES = (EXACT, FAST)
SYSTEMS = {
    EXACT: "exact, sessions together",
    FAST: "fast, sessions together",
    LIBRARY: "transformers, one session at a time",
}


def measure(folder: Path, dtype: str, repetitions: int) -> Figures:
    """Time all steps of a model, which is loaded twice; raises Unusable."""
    model = load(folder, dtype)
    exactness = self_test(Forward(model, positions_tried(model)), str(folder))
    text = Text.fit(model, max(feed.tokens for feed in FEEDS))
    library = Library(folder, DTYPES[dtype], text)
    read = weights_read(library.network)
    actions = {(FLOOR, ONE): reading(read)}
    for mode in MODES:
        build = partial(Forward, model, exact=mode == EXACT)
        engine = Engine(build, text, max(feed.sessions for feed in FEEDS))
        actions |= {(mode, feed): engine.step(feed) for feed in FEEDS}
    actions |= {(LIBRARY, feed): library.step(feed) for feed in COMPARED}
    seconds = timed(actions, track(range(1 + repetitions), "measuring", transient=True))
    return Figures(
        dtype=dtype,
        exactness=str(exactness),
        text=text,
        floor=seconds.pop((FLOOR, ONE)),
        seconds=seconds,
        weights=sum(weight.nbytes for weight in library.network.parameters()),
        read=read,
        token=position_bytes(model.layers, model.dtype),
    )


def step_table(figures: Figures) -> Table:
    """The engine's steps, by what they feed."""
    columns = [f"{mode}\n{column}" for mode in MODES for column in ("ms", "floors", "tokens/s")]
    shown = Table("sessions\nx tokens", *columns, "exact\nto fast", box=None)
    for feed in FEEDS:
        cells: list[str] = []
        for mode in MODES:
            step = figures.row(mode, feed)
            cells += [f"{step['milliseconds']:.1f}", f"{step['floors']:.2f}"]
            cells += [f"{step['tokens_per_second']:.0f}"]
        ratio = figures.seconds[EXACT, feed] / figures.seconds[FAST, feed]
        shown.add_row(str(feed), *cells, f"{ratio:.2f}")
    return shown


def system_table(figures: Figures) -> Table:
    """The engine beside transformers: five tokens against one, and many sessions."""
    headings = [heading for feed in COMPARED for heading in (f"{feed}\nms", "\nfloors")]
    shown = Table("system", *headings, f"{FIVE}\nto {ONE}", "times\nas fast", box=None)
    for system, name in SYSTEMS.items():
        _, five, together = rows = [figures.row(system, feed) for feed in COMPARED]
        cells = [f"{row[key]:.2f}" for row in rows for key in ("milliseconds", "floors")]
        ratios = five["ratio_to_one_token"], together["times_as_fast_as_transformers"]
        shown.add_row(name, *cells, *(f"{ratio:.2f}" for ratio in ratios))
    return shown


@contextmanager
def subject(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """The model directory to measure, and what to call it; without one the embedded target, grown
    for as long as the scope lasts. Raises Unusable.
    """
    if folder:
        yield folder, folder.name
        return
    with TemporaryDirectory() as temporary:
        grown = grow(models.TARGET, Path(temporary) / "target", Shape())
        size = f"{grown.parameters / 1e6:.1f} million parameters"
        name = f"grown from the embedded target to {size}: same texts, realistic cost"
        yield Path(temporary) / "target", name


def main(
    model: Annotated[
        Path | None, typer.Argument(help="model directory; none: the embedded target, grown")
    ] = None,
    dtype: Annotated[str, typer.Option(help="one or several, with commas")] = "float32",
    threads: Annotated[int, typer.Option(help="CPU threads", min=1)] = 1,
    repetitions: Annotated[int, typer.Option(help="of every step", min=1)] = 15,
    json: Annotated[
        Path | None, typer.Option("--json", help="write the figures to this file too")
    ] = None,
) -> None:
    """Step times of the engine on one model, exact and fast, beside transformers."""
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    try:
        names = chosen(dtype)
        with subject(model) as (folder, name):
            measured = [measure(folder, each, repetitions) for each in names]
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    cores = "one thread" if threads == 1 else f"{threads} threads"
    heading = f"{name}; medians of {repetitions}: {described(cores)}"
    publish(heading, measured, json)


def publish(heading: str, measured: Sequence[Figures], file: Path | None) -> None:
    """Print all figures and, if a file is given, write them there."""
    shown = [
        part
        for each in measured
        for part in (each.heading(), step_table(each), "", system_table(each))
    ]
    report.publish(heading, Group(*shown), [row for each in measured for row in each.rows()], file)


if __name__ == "__main__":
    typer.run(main)
