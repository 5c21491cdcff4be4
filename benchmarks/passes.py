"""Measure the time that a forward pass spends outside its kernels. Passes that run the network's
code in transformers are compared with passes that run the engine's recorded program of the network.
The two kinds of passes take turns in one process.

By default, the network has the 28 layers and the heads of Qwen3-0.6B, but is so narrow that its
kernels take almost no time. Each result is the shortest processor time of one thread over several
repetitions.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.dtypes import DTYPES
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tandem.protos.errors import TandemError

POSITIONS = 2048
CONTEXT = 64  # cached tokens before the fed rows
ROWS = (1, 9, 64)
REPEATS = 3  # consecutive passes; only after the first are the processor's caches warm
MAX_LOGITS = 5  # maximum number of rows with logits
CALLS = ("_linear", "_attend", "_norm", "_gate", "_program")
CODE, PROGRAM = "its own code", "its program"


@dataclass(frozen=True, slots=True)
class Row:
    """The time of a pass in milliseconds, and the part of it (`beside`) that is spent outside
    kernels.
    """

    dtype: str
    way: str
    rows: int
    milliseconds: float
    beside: float


def narrow(folder: Path) -> Path:
    """Make a model directory with a narrow network and the embedded target's tokenizer."""
    config = Qwen3Config(
        num_hidden_layers=28,
        hidden_size=64,
        intermediate_size=192,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=16,
        vocab_size=4096,
        max_position_embeddings=POSITIONS,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for file in models.TARGET.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yield a list of one number: the total seconds spent in kernels inside the context."""
    build, seconds = kernels(), [0.0]
    if not build:
        raise SystemExit("error: no kernels have been built for this processor")
    plain = {name: getattr(build, name) for name in CALLS}

    def noting(call: Callable[..., None]) -> Callable[..., None]:
        def noted(*given: Any) -> None:
            began = time.thread_time()
            call(*given)
            seconds[0] += time.thread_time() - began

        return noted

    for name, call in plain.items():
        setattr(build, name, noting(call))
    try:
        yield seconds
    finally:
        for name, call in plain.items():
            setattr(build, name, call)


def measure(folder: Path, dtypes: list[str], repetitions: int) -> list[Row]:
    """Measure the passes of a model in all given dtypes. Raises Unusable."""
    found = []
    for dtype in dtypes:
        model = load(folder, dtype)
        ways = {
            CODE: HFRunner(model, POSITIONS, program=False),
            PROGRAM: HFRunner(model, POSITIONS),
        }
        if why := ways[PROGRAM].unfused:
            raise SystemExit(f"error: the engine has no program for {folder}: {why}")
        found += least(dtype, ways, repetitions)
    return found


def least(dtype: str, ways: Mapping[str, HFRunner], repetitions: int) -> list[Row]:
    """Return the shortest time of a pass for each number of rows, with the network's code in
    transformers and with the engine's recorded program.
    """
    best = dict[tuple[str, int], Row]()
    prompts = {}
    for way, forward in ways.items():
        table = forward.pool.allocate(CONTEXT + max(ROWS))
        assert table, "the pool has room for both"
        prompts[way] = table
        forward([Segment(table, 0, (1,) * CONTEXT, tree.chain(CONTEXT), 1)])
    for _ in track(range(repetitions), dtype, transient=True):
        for rows in ROWS:
            parents, tokens = tree.chain(rows), tuple(range(rows))
            for way, forward in ways.items():
                segment = Segment(prompts[way], CONTEXT, tokens, parents, min(rows, MAX_LOGITS))
                for _ in range(REPEATS):
                    with timed() as inside:
                        began = time.thread_time()
                        forward([segment])
                        took = time.thread_time() - began
                    row = Row(dtype, way, rows, 1e3 * took, 1e3 * (took - inside[0]))
                    best[way, rows] = min(
                        row, best.get((way, rows), row), key=lambda each: each.milliseconds
                    )
    return list(best.values())


def table(found: list[Row]) -> Table:
    """Return the results as a table to print."""
    shown = Table("dtype", "rows", "by", "ms", "beside kernels", box=None)
    for each in sorted(found, key=lambda row: (row.dtype, row.rows, row.way)):
        cells = str(each.rows), each.way, f"{each.milliseconds:.2f}", f"{each.beside:.2f}"
        shown.add_row(each.dtype, *cells)
    return shown


def main(
    model: Annotated[Path | None, typer.Argument(help="model directory")] = None,
    dtype: Annotated[str, typer.Option(help="dtypes, separated by commas")] = "float32,bfloat16",
    repetitions: Annotated[int, typer.Option(help="repetitions of every measurement", min=1)] = 20,
    file: report.JsonFile = None,
) -> None:
    """Measure the time that a pass spends outside its kernels, with and without the engine's
    recorded program of the network.
    """
    dtypes = dtype.split(",")
    if unknown := next((name for name in dtypes if name not in DTYPES), None):
        raise SystemExit(f"error: --dtype {unknown!r} is not one of {', '.join(DTYPES)}")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(model or narrow(Path(folder)), dtypes, repetitions)
        except TandemError as problem:
            raise SystemExit(f"error: {problem}") from None
    what = model.name if model else "28 narrow layers"
    heading = f"{what}; minimum of {repetitions} runs: {described('one thread')}"
    report.publish(heading, table(found), [asdict(row) for row in found], file)


if __name__ == "__main__":
    typer.run(main)
