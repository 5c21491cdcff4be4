"""Time steps of the engine, of transformers and, if it is installed, of llama.cpp on one model.

All compared systems take turns in one run. The floor is the time that the same threads need to read
the weights once: no step that reads all weights can be faster. A ratio is the time of another
system divided by the engine's time. Transformers runs one session at a time.
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

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.figures.steps import (
    Engine,
    Feed,
    Library,
    Text,
    reading,
    timed,
    weights_read,
)
from tandem.benchmarks.figures.steptimes import (
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
from tandem.benchmarks.peers import llamacpp
from tandem.engine.cache.pool import position_bytes
from tandem.engine.exact.exactness import positions_tried, self_test
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.model.dtypes import DTYPES
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.engine.weights import weights_bytes
from tandem.models.grow import Shape, grow
from tandem.protos import tree
from tandem.protos.errors import TandemError
from tandem.protos.gguf import is_gguf

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
MAX_SESSIONS = max(feed.sessions for feed in FEEDS)
TANDEM, LLAMA, FLASH = "tandem", "llama.cpp", "and flash"
SYSTEMS = (TANDEM, LLAMA, FLASH, LIBRARY)


def measure(folder: Path, dtype: str, repetitions: int) -> Figures:
    """Time the steps of every system on one model. The model is loaded two or three times. Raises
    Unusable.
    """
    model, file = load(folder, dtype), is_gguf(folder)
    exactness = self_test(HFRunner(model, positions_tried(model)), str(folder))
    text = Text.fit(model, max(feed.tokens for feed in FEEDS))
    library = None if file else Library(folder, DTYPES[dtype], text)
    read = weights_read(library.network) if library else weights_bytes(model)
    actions = {(FLOOR, ONE): reading(read)}
    engine = Engine(partial(HFRunner, model), text, MAX_SESSIONS)
    actions |= {(TANDEM, feed): engine.step(feed) for feed in FEEDS}
    chains = [feed for feed in FEEDS if tree.is_chain(feed.parents)]
    for name, llama in peers(folder, dtype, text).items():
        actions |= {(name, feed): llama.step(feed) for feed in chains}
    if library:
        actions |= {(LIBRARY, feed): library.step(feed) for feed in COMPARED}
    seconds = timed(actions, track(range(1 + repetitions), "measuring", transient=True))
    return Figures(
        dtype=dtype,
        exactness=str(exactness),
        text=text,
        floor=seconds.pop((FLOOR, ONE)),
        seconds=seconds,
        weights=sum(each.nbytes for each in library.network.parameters()) if library else read,
        read=read,
        token=position_bytes(model.layers, model.dtype),
    )


def peers(folder: Path, dtype: str, text: Text) -> dict[str, llamacpp.Steps]:
    """Load the same weights into llama.cpp, with and without flash attention. Returns an empty
    mapping if llama.cpp is not installed.
    """
    if not llamacpp.installed():
        return {}
    with TemporaryDirectory() as temporary:
        file = folder
        if not is_gguf(folder):
            file = Path(temporary) / "model.gguf"
            llamacpp.convert(folder, file, dtype)
        ways = {LLAMA: False, FLASH: True}
        return {
            name: llamacpp.Steps(file, text, MAX_SESSIONS, flash) for name, flash in ways.items()
        }


def step_table(figures: Figures) -> Table:
    """Return a table of all steps, with a row for each number of sessions and tokens."""
    systems = [system for system in SYSTEMS if (system, ONE) in figures.seconds]
    columns = [f"{TANDEM}\nms", "\nfloors", *(f"{system}\nms" for system in systems[1:])]
    columns += [f"to\n{system}" for system in systems[1:]]
    shown = Table("sessions\nx tokens", *columns, box=None)
    for feed in FEEDS:
        own = figures.seconds[TANDEM, feed]
        others = [figures.seconds.get((system, feed)) for system in systems[1:]]
        shown.add_row(
            *(str(feed), f"{1e3 * own:.1f}", f"{own / figures.floor:.2f}"),
            *(f"{1e3 * seconds:.1f}" if seconds else "" for seconds in others),
            *(f"{seconds / own:.2f}" if seconds else "" for seconds in others),
        )
    return shown


@contextmanager
def subject(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the model directory to measure, and a name for it. If no `folder` is given, the model
    is an enlarged copy of the embedded target. The copy is deleted when the context ends. Raises
    Unusable.
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
        Path | None,
        typer.Argument(help="model directory or GGUF file; default: the embedded target, enlarged"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="dtypes, separated by commas")] = "float32",
    threads: Annotated[int, typer.Option(help="CPU threads", min=1)] = 1,
    repetitions: Annotated[int, typer.Option(help="repetitions of every step", min=1)] = 15,
    json: report.JsonFile = None,
) -> None:
    """Time steps of the engine, of llama.cpp and of transformers on one model."""
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    if build := kernels():
        build.threads = threads
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
    """Print the results of all dtypes and, if a file is given, write them to the file."""
    shown = [part for each in measured for part in (each.heading(), step_table(each))]
    report.publish(heading, Group(*shown), [row for each in measured for row in each.rows()], file)


if __name__ == "__main__":
    typer.run(main)
