"""Step times of the engine on one model, exact and fast, beside transformers.

All that is compared takes turns in one run. The floor is the time that the same threads need to
read the weights once: no step that reads them is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Group
from rich.table import Table
from transformers.utils import logging

import models
from benchmarks import report
from benchmarks.steps import Engine, Feed, Library, Text, reading, timed, weights_read
from engine.exactness import positions_tried, self_test
from engine.forward import Forward
from engine.kv import position_bytes
from engine.model import DTYPES, load
from models.grow import Shape, grow
from protos import tree
from protos.errors import TandemError, Unusable

TYPICAL = (-1, 0, 1, 2, 1, 4, 0, 6, 7, 6, 9, 0, -1, 12, 13, -1)  # a draft of the embedded pair
ONE, FIVE, TOGETHER = COMPARED = (
    Feed(1, tree.chain(1)),
    Feed(1, tree.chain(5)),
    Feed(16, tree.chain(5)),
)
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
EXACT, FAST, LIBRARY, FLOOR = "exact", "fast", "transformers", "floor"
MODES = (EXACT, FAST)
SYSTEMS = {
    EXACT: "exact, sessions together",
    FAST: "fast, sessions together",
    LIBRARY: "transformers, one session at a time",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured with one dtype: median seconds by system and feed, and bytes."""

    dtype: str
    exactness: str
    text: Text
    seconds: Mapping[tuple[str, Feed], float]
    floor: float  # seconds
    weights: int
    read: int  # of the weights, by a step
    token: int  # of the cache

    def row(self, system: str, feed: Feed) -> dict[str, Any]:
        """One step of one system, for programs."""
        seconds, alone = self.seconds[system, feed], self.seconds.get((LIBRARY, feed))
        return {
            "dtype": self.dtype,
            "system": system,
            "sessions": feed.sessions,
            "tokens": feed.tokens,
            "draft": "chain" if tree.is_chain(feed.parents) else "tree",
            "milliseconds": 1e3 * seconds,
            "floors": seconds / self.floor,
            "tokens_per_second": feed.sessions * feed.tokens / seconds,
            "ratio_to_one_token": seconds / self.seconds[system, ONE],
            "times_as_fast_as_transformers": alone / seconds if alone else None,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The floor and all steps, for programs."""
        floor = {
            "dtype": self.dtype,
            "system": FLOOR,
            "milliseconds": 1e3 * self.floor,
            "bytes_per_second": self.read / self.floor,
            "weight_bytes": self.weights,
            "weight_bytes_read": self.read,
            "cache_bytes_per_token": self.token,
            "exactness": self.exactness,
        }
        return [floor, *(self.row(*step) for step in self.seconds)]

    def heading(self) -> str:
        """The bytes, and what the steps have in common, in lines that fit."""
        one, several = self.text.contexts(ONE.sessions), self.text.contexts(TOGETHER.sessions)
        speed = f"{self.read / self.floor / 1e9:.1f} GB/s"
        return (
            f"\n{self.dtype}, {self.exactness}\n"
            f"{self.weights / 1e6:.1f} MB of weights, {self.read / 1e6:.1f} read by a step;"
            f" the floor: reading them takes {1e3 * self.floor:.2f} ms ({speed})\n"
            f"{self.token} bytes of cache per token; cached tokens: {one[0]} in one session,"
            f" {several[0]} to {several[-1]} in several\n"
        )


def measure(folder: Path, dtype: str, repetitions: int) -> Figures:
    """Time all steps of a model, which is loaded twice; raises Unusable."""
    model = load(folder, dtype)
    exactness = self_test(Forward(model, positions_tried(model)), str(folder))
    text = Text.fit(model, max(feed.tokens for feed in FEEDS))
    library = Library(folder, DTYPES[dtype], text)
    read = weights_read(library.network)
    actions = {(FLOOR, ONE): reading(read)}
    for mode in MODES:
        engine = Engine(model, mode == EXACT, text, max(feed.sessions for feed in FEEDS))
        actions |= {(mode, feed): engine.step(feed) for feed in FEEDS}
    actions |= {(LIBRARY, feed): library.step(feed) for feed in COMPARED}
    seconds = timed(actions, repetitions)
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


def chosen(dtypes: str) -> list[str]:
    """The names between commas; raises Unusable if one is unknown, before anything is measured."""
    names = dtypes.split(",")
    for name in names:
        if name not in DTYPES:
            raise Unusable(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return names


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
    heading = f"{name}; medians of {repetitions}: {report.machine(cores)}"
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
