"""Time the compiled kernels: attention of a few rows to a long text, and linear layers on the rows
of a prompt. For comparison, PyTorch's matrix product, which uses oneDNN, is timed too.

All compared kernels, including those of another checkout if one is given, take turns in one
process. Each reported time is the shortest of several repetitions. With one thread, processor time
is measured. With several threads, wall-clock time is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table

from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.engine.cache.pool import KVPool, LayerGeometry
from tandem.engine.forward.cpu.builds import FOLDER, runnable, sources_of
from tandem.engine.forward.cpu.kernels import Kernels, plain_weights
from tandem.engine.forward.cpu.panels import packed_panels
from tandem.engine.forward.cpu.paths import Paths
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.model.dtypes import DTYPES

HEADS, KV_HEADS, SIZE = 32, 8, 128
CONTEXTS = (512, 8192)
ATTENDING = (1, 5, 33)  # numbers of rows: one token, a short draft, a large tree
PROMPT = 512  # number of prompt rows in one step
SHAPES = {  # output and input features of linear layers
    "grown target, gate and up": (5120, 768),
    "grown target, down": (768, 2560),
    "SmolLM2, gate and up": (3072, 576),
    "SmolLM2, down": (576, 1536),
    "SmolLM2, o": (576, 576),
    "2048 x 2048": (2048, 2048),
}
OWN, OTHER, LIBRARY = "tandem", "other", "PyTorch"

Actions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Case:
    """A workload to time. Each of `actions` runs the workload with different kernels. The workload
    consists of `operations` multiplications and additions.
    """

    name: str
    operations: int
    actions: Actions


def attention(build: Mapping[str, Kernels], dtype: torch.dtype) -> Iterator[Case]:
    """Yield workloads of attention, in which rows at the end of a text attend to the whole text.
    The keys and values of the text are stored in a KV pool.
    """
    for context in CONTEXTS:
        pool = KVPool([LayerGeometry(KV_HEADS, SIZE, SIZE)], context, dtype, torch.device("cpu"))
        keys, values = pool.keys[0], pool.values[0]
        for stored in (keys, values):
            stored.normal_()
        for rows in ATTENDING:
            query = torch.randn(rows, HEADS, SIZE).to(dtype)
            given = query, keys, values, Paths.straight(context - rows, rows), AttentionOptions()
            actions = {name: _bound(each.attend, *given) for name, each in build.items()}
            operations = 4 * rows * context * HEADS * SIZE
            yield Case(f"attention, {rows} on {context:,}", operations, actions)


def linear(build: Mapping[str, Kernels], dtype: torch.dtype) -> Iterator[Case]:
    """Yield workloads of linear layers that process the rows of a prompt."""
    for name, (outputs, inputs) in SHAPES.items():
        weight, rows = torch.randn(outputs, inputs).to(dtype), torch.randn(PROMPT, inputs).to(dtype)
        actions: dict[str, Callable[[], object]] = {LIBRARY: _bound(torch.mm, rows, weight.t())}
        for key, each in build.items():
            paired = each.bf16_pairs and dtype == torch.bfloat16
            panels = packed_panels(weight[None], each.width, 2 if paired else 1)
            weights = plain_weights(panels, outputs)
            actions[key] = _bound(each.linear, rows, weights, None, None, dtype)
        yield Case(f"linear, {PROMPT} rows, {name}", 2 * PROMPT * outputs * inputs, actions)


def _bound(function: Callable[..., object], *given: object) -> Callable[[], object]:
    return lambda: function(*given)


def least(case: Case, repetitions: int, clock: Callable[[], float]) -> dict[str, float]:
    """Run the actions of a workload in turns, and return the shortest time of each in seconds."""
    seconds = dict.fromkeys(case.actions, float("inf"))
    for _ in range(1 + repetitions):
        for name, action in case.actions.items():
            began = clock()
            action()
            seconds[name] = min(seconds[name], clock() - began)
    return seconds


def builds(other: Path | None) -> dict[str, Kernels]:
    """Return the best kernels for this processor from this checkout and, if given, the same kernels
    from another checkout. Raises SystemExit if kernels are missing.
    """
    file = next(runnable(), None)
    if not file:
        raise SystemExit("error: no kernels have been built for this processor")
    found = {OWN: Kernels(file)}
    if other:
        folder = other / FOLDER.resolve().relative_to(Path(__file__).resolve().parents[1])
        try:
            found[OTHER] = Kernels(folder / file.name, sources_of(folder))
        except (OSError, AttributeError) as error:
            raise SystemExit(f"error: --other {other} has no kernels that run: {error}") from None
    return found


@torch.inference_mode()
def measure(build: Mapping[str, Kernels], dtypes: list[str], repetitions: int) -> list[Any]:
    """Time all workloads. Returns the name, dtype and operations of each workload, and the seconds
    of each of its actions.
    """
    single = torch.get_num_threads() == 1
    clock = time.thread_time if single else time.perf_counter
    found = []
    for dtype in dtypes:
        for cases in (attention, linear):
            for case in track(list(cases(build, DTYPES[dtype])), dtype, transient=True):
                seconds = least(case, repetitions, clock)
                found.append({"case": case.name, "dtype": dtype, "operations": case.operations})
                found[-1]["seconds"] = seconds
    return found


def table(found: list[Any]) -> Table:
    """Return the results as a table to print."""
    headings = ("ms", "GFLOP/s", "other\nms", "times\nas fast", "PyTorch\nms", "times\nas fast")
    shown = Table("", "dtype", *headings, box=None)
    for each in found:
        own = each["seconds"][OWN]
        cells = [f"{1e3 * own:.2f}", f"{each['operations'] / own / 1e9:.0f}"]
        for name in (OTHER, LIBRARY):
            seconds = each["seconds"].get(name)
            cells += [f"{1e3 * seconds:.2f}", f"{seconds / own:.2f}"] if seconds else ["", ""]
        shown.add_row(each["case"], each["dtype"], *cells)
    return shown


def main(
    dtype: Annotated[str, typer.Option(help="dtypes, separated by commas")] = "float32,bfloat16",
    other: Annotated[Path | None, typer.Option(help="another checkout with built kernels")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads", min=1)] = 1,
    repetitions: Annotated[int, typer.Option(help="repetitions of every measurement", min=1)] = 9,
    file: report.JsonFile = None,
) -> None:
    """Time the compiled kernels and, for comparison, those of PyTorch and of another checkout."""
    dtypes = dtype.split(",")
    if unknown := next((name for name in dtypes if name not in DTYPES), None):
        raise SystemExit(f"error: --dtype {unknown!r} is not one of {', '.join(DTYPES)}")
    torch.set_num_threads(threads)
    build = builds(other)
    for each in build.values():
        each.threads = threads
    found = measure(build, dtypes, repetitions)
    cores = "one thread" if threads == 1 else f"{threads} threads"
    shape = f"{HEADS} heads of {SIZE} on {KV_HEADS}"
    heading = f"{shape}; {build[OWN].name}; minimum of {repetitions} runs: {described(cores)}"
    report.publish(heading, table(found), found, file)


if __name__ == "__main__":
    typer.run(main)
