"""Time the engine's steps on a CUDA device with the attention backends tiles, rows and graphs.

The benchmark needs only PyTorch and transformers. The engine is checked before it is timed, and no
times are reported if a check fails. Steps of transformers are timed for comparison. All systems
take turns in one run, with the cuBLAS settings that exact mode requires. The floor is the time that
the device needs to read the weights once. The benchmark also measures the device time of captured
passes, without the time that the host needs.

With `--device cpu`, the device is emulated: the checks are valid, but the times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import checks, emulation
from tandem.benchmarks.figures.captured import aligned, pass_table, replayed
from tandem.benchmarks.figures.machine import described, facts
from tandem.benchmarks.figures.steps import (
    Action,
    Engine,
    Feed,
    Library,
    Text,
    reading,
    timed,
    weights_read,
)
from tandem.benchmarks.figures.steptimes import FLOOR, LIBRARY, ONE, TYPICAL, Figures, chosen
from tandem.engine.cache.pool import position_bytes
from tandem.engine.forward.cuda.batch_invariance import disable_split_k
from tandem.engine.model.dtypes import DTYPES
from tandem.engine.model.load import HFModel, load
from tandem.engine.runner import BY_ROWS, AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import TandemError

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
SYSTEMS: dict[str, tuple[AttentionBackend, bool]] = {
    "tiles": (AttentionBackend.TILES, False),
    "rows": (AttentionBackend.ROWS, True),
    "graphs": (AttentionBackend.GRAPHS, True),
    FAST: (AttentionBackend.GRAPHS, False),
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


def build(model: HFModel, system: str, positions: int) -> HFRunner:
    """Build the runner of a system, with memory for `positions` cached tokens. Raises Unusable."""
    backend, exact = SYSTEMS[system]
    if backend is AttentionBackend.GRAPHS and model.device.type == "cpu":
        return emulation.replaying(HFRunner(model, positions, exact, AttentionBackend.ROWS))
    forward = HFRunner(model, positions, exact, backend)
    forward.capture_passes()
    return forward


def check(model: HFModel, library: Library, name: str) -> dict[str, Any]:
    """Check all systems on a model, and return the results for the JSON file. Raises Unusable if a
    check fails.
    """
    forwards = {system: build(model, system, checks.room_for(model)) for system in SYSTEMS}
    for system, (backend, exact) in SYSTEMS.items():
        if exact and backend in BY_ROWS:
            checks.exact(forwards[system], name)
    checks.replays(forwards["rows"], forwards["graphs"])
    off = checks.right(forwards, library.network)
    sizes = list(forwards["graphs"].sizes)
    return {"exact": True, "replayed_as_launched": True, "off": off, "rows_of_passes": sizes}


def measure(
    folder: Path, dtype: str, repetitions: int, device: torch.device
) -> tuple[Figures, dict[str, Any]]:
    """Check and time all systems on a model, which is loaded twice. Raises Unusable."""
    model = load(folder, dtype, str(device))
    text = Text.fit(model, max(feed.tokens for feed in FEEDS))
    library = Library(folder, DTYPES[dtype], text, device)
    found = check(model, library, str(folder))
    read = weights_read(library.network)
    actions = {(FLOOR, ONE): reading(read, device)}
    most = max(feed.sessions for feed in FEEDS)
    engines = {system: Engine(partial(build, model, system), text, most) for system in SYSTEMS}
    for system, engine in engines.items():
        actions |= {(system, feed): engine.step(feed) for feed in FEEDS}
    actions |= {(LIBRARY, feed): library.step(feed) for feed in FEEDS}
    waiting = {name: synchronized(action, device) for name, action in actions.items()}
    seconds = timed(waiting, range(1 + repetitions))
    sizes = ", ".join(map(str, found["rows_of_passes"]))
    figures = Figures(
        dtype=dtype,
        exactness=f"exact, passes of {sizes} rows",
        text=text,
        floor=seconds.pop((FLOOR, ONE)),
        seconds=seconds,
        weights=sum(weight.nbytes for weight in library.network.parameters()),
        read=read,
        token=position_bytes(model.layers, model.dtype),
        passes=replayed(engines["graphs"].forward),
    )
    return figures, {"dtype": dtype, **found}


def synchronized(action: Action, device: torch.device) -> Action:
    """Return a function that runs `action` and then waits until the device has finished."""

    def run() -> None:
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def step_table(figures: Figures) -> str:
    """Return a table with a row for each number of sessions and tokens. The first columns have the
    milliseconds of every system. The other columns have the throughput of exact mode with graphs,
    and its speed relative to the floor, transformers and fast mode.
    """
    systems = (*SYSTEMS, LIBRARY)
    more = ("floors", "tokens/s", "x transformers", "exact/fast")
    lines = [["sessions x tokens", *(f"{system}, ms" for system in systems), *more]]
    for feed in FEEDS:
        graphs = figures.row("graphs", feed)
        ratio = figures.seconds["graphs", feed] / figures.seconds[FAST, feed]
        lines.append(
            [
                str(feed),
                *(f"{1e3 * figures.seconds[system, feed]:.2f}" for system in systems),
                f"{graphs['floors']:.2f}",
                f"{graphs['tokens_per_second']:.0f}",
                f"{graphs['times_as_fast_as_transformers']:.1f}",
                f"{ratio:.2f}",
            ]
        )
    return aligned(lines)


@contextmanager
def subject(folder: Path | None, device: torch.device) -> Iterator[tuple[Path, str]]:
    """Yield the model directory to measure, and a name for it. If no `folder` is given, the model
    is the embedded target on a CPU, and a temporary Llama with random weights on a CUDA device.
    """
    if folder or device.type == "cpu":
        folder = folder or models.TARGET
        yield folder, folder.name
        return
    with TemporaryDirectory() as temporary:
        count = save_random(Path(temporary), device)
        yield Path(temporary), f"random Llama of {count / 1e9:.2f} billion parameters"


def save_random(folder: Path, device: torch.device) -> int:
    """Save a Llama model with random weights and the embedded target's tokenizer. Returns the
    number of weights.
    """
    torch.manual_seed(0)
    with device:
        network: Any = LlamaForCausalLM(LLAMA)
    network.to(torch.bfloat16).save_pretrained(folder)
    for file in models.TARGET.glob("tokenizer*"):
        shutil.copy(file, folder)
    return int(network.num_parameters())


def run(given: argparse.Namespace, device: torch.device) -> None:
    """Check the engine, time all systems, and print and write the results. Raises TandemError."""
    on_cpu = device.type == "cpu"
    names = chosen(given.dtype or ("float32" if on_cpu else "bfloat16"))
    with subject(given.model, device) as (folder, name):
        measured = [measure(folder, each, given.repetitions, device) for each in names]
    where = "emulated on the CPU, times mean nothing" if on_cpu else torch.cuda.get_device_name()
    title = f"{name}; medians of {given.repetitions}: {described(where)}"
    print(title)
    for figures, found in measured:
        tables = step_table(figures), pass_table(figures)
        print(figures.heading(), f"\nchecked: {found}\n\n", *tables, sep="")
    if given.json:
        content = {
            "title": title,
            "machine": facts(device),
            "checks": [found for _, found in measured],
            "rows": [row for figures, _ in measured for row in figures.rows()],
            "passes": [each for figures, _ in measured for each in figures.captured()],
        }
        given.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line `python3 -m benchmarks.gpu`."""
    parser = argparse.ArgumentParser(
        "tandem.benchmarks.gpu", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("model", type=Path, nargs="?", help="model folder (default: random Llama)")
    parser.add_argument("--dtype", help="dtypes, separated by commas (default: bfloat16)")
    parser.add_argument(
        "--repetitions", type=int, default=30, help="repetitions of every step (default: 30)"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this JSON file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: emulated")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    logging.disable_progress_bar()
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("error: there is no CUDA device; --device cpu emulates one")
        disable_split_k()
    else:
        torch.set_num_threads(1)
    try:
        with nullcontext() if device.type == "cuda" else emulation.emulated():
            run(given, device)
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None


if __name__ == "__main__":
    main()
