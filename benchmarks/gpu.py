"""Step times of the engine on a CUDA device: by tiles, by rows, with graphs, beside transformers.

All that is compared takes turns in one run. The floor is the time that the device needs to read the
weights once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Group
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import models
from benchmarks import report
from benchmarks.engine import FLOOR, LIBRARY, ONE, TYPICAL, Figures, chosen
from benchmarks.steps import Action, Engine, Feed, Library, Text, reading, timed, weights_read
from engine.exactness import positions_tried, self_test
from engine.forward import Backend, Forward
from engine.kv import position_bytes
from engine.model import DTYPES, load
from protos import tree
from protos.errors import TandemError

FEEDS = (
    ONE,
    Feed(1, tree.chain(5)),
    Feed(1, tree.chain(17)),
    Feed(8, tree.chain(5)),
    Feed(16, tree.chain(5)),
    Feed(16, tree.chain(16)),
    Feed(16, tree.hang(1, TYPICAL)),
)
FAST = "graphs, fast"
SYSTEMS: dict[str, tuple[Backend, bool]] = {
    "tiles": (Backend.TILES, True),
    "rows": (Backend.ROWS, True),
    "graphs": (Backend.GRAPHS, True),
    FAST: (Backend.GRAPHS, False),
}
LLAMA = LlamaConfig(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)


def synchronized(action: Action) -> Action:
    """The same, until the device is done with it."""

    def run() -> None:
        action()
        torch.cuda.synchronize()

    return run


def measure(folder: Path, dtype: str, repetitions: int) -> Figures:
    """Time all steps of a model, which is loaded twice; raises Unusable."""
    model = load(folder, dtype, "cuda")
    exactness = self_test(Forward(model, positions_tried(model)), str(folder))
    text = Text.fit(model, max(feed.tokens for feed in FEEDS))
    library = Library(folder, DTYPES[dtype], text, model.device)
    read = weights_read(library.network)
    actions = {(FLOOR, ONE): reading(read, model.device)}
    sizes = ""
    for system, (backend, exact) in SYSTEMS.items():
        engine = Engine(model, exact, text, max(feed.sessions for feed in FEEDS), backend)
        actions |= {(system, feed): engine.step(feed) for feed in FEEDS}
        if exact and backend is Backend.GRAPHS:
            sizes = ", ".join(map(str, engine.forward.sizes))
    actions |= {(LIBRARY, feed): library.step(feed) for feed in FEEDS}
    seconds = timed({name: synchronized(action) for name, action in actions.items()}, repetitions)
    return Figures(
        dtype=dtype,
        exactness=f"{exactness}, passes of {sizes} rows",
        text=text,
        floor=seconds.pop((FLOOR, ONE)),
        seconds=seconds,
        weights=sum(weight.nbytes for weight in library.network.parameters()),
        read=read,
        token=position_bytes(model.layers, model.dtype),
    )


def step_table(figures: Figures) -> Table:
    """Milliseconds of every system by what is fed; of the last of ours, more."""
    columns = [f"{system}\nms" for system in (*SYSTEMS, LIBRARY)]
    more = (
        "graphs\nfloors",
        "graphs\ntokens/s",
        "times as fast\nas transformers",
        "exact\nto fast",
    )
    shown = Table("sessions\nx tokens", *columns, *more, box=None)
    for feed in FEEDS:
        times = [figures.seconds[system, feed] for system in (*SYSTEMS, LIBRARY)]
        graphs = figures.row("graphs", feed)
        ratio = figures.seconds["graphs", feed] / figures.seconds[FAST, feed]
        shown.add_row(
            str(feed),
            *(f"{1e3 * seconds:.2f}" for seconds in times),
            f"{graphs['floors']:.2f}",
            f"{graphs['tokens_per_second']:.0f}",
            f"{graphs['times_as_fast_as_transformers']:.1f}",
            f"{ratio:.2f}",
        )
    return shown


@contextmanager
def subject(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """The model directory to measure, and what to call it; without one a random Llama, as long as
    the scope lasts.
    """
    if folder:
        yield folder, folder.name
        return
    with TemporaryDirectory() as temporary:
        count = save_random(Path(temporary))
        yield Path(temporary), f"random Llama of {count / 1e9:.2f} billion parameters"


def save_random(folder: Path) -> int:
    """Make a model directory with random weights and the embedded tokenizer; how many weights."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        network: Any = LlamaForCausalLM(LLAMA)
    network.to(torch.bfloat16).save_pretrained(folder)
    for file in models.TARGET.glob("tokenizer*"):
        shutil.copy(file, folder)
    return int(network.num_parameters())


def main(
    model: Annotated[
        Path | None, typer.Argument(help="model directory; none: a random Llama of a billion")
    ] = None,
    dtype: Annotated[str, typer.Option(help="one or several, with commas")] = "bfloat16",
    repetitions: Annotated[int, typer.Option(help="of every step", min=1)] = 30,
    json: Annotated[
        Path | None, typer.Option("--json", help="write the figures to this file too")
    ] = None,
) -> None:
    """Step times of the engine on a CUDA device."""
    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        raise SystemExit("error: there is no CUDA device")
    try:
        names = chosen(dtype)
        with subject(model) as (folder, name):
            measured = [measure(folder, each, repetitions) for each in names]
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    shown = [part for each in measured for part in (each.heading(), step_table(each))]
    heading = f"{name}; medians of {repetitions}: {report.machine(torch.cuda.get_device_name())}"
    report.publish(heading, Group(*shown), [row for each in measured for row in each.rows()], json)


if __name__ == "__main__":
    typer.run(main)
