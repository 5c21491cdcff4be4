"""Report the results: as a table for people, as JSON with the keys of vLLM's `bench serve`, and as
plots of the latency distributions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.benchmarks.serve.record import Record
from tandem.benchmarks.serve.summary import TIMES, times
from tandem.protos.errors import Unusable

SHOWN = {
    "request_throughput": "requests/s",
    "request_goodput": "requests/s within limits",
    "output_throughput": "tokens/s",
    **{
        f"{of}_{name}_ms": f"{name.upper()} {of}, ms"
        for name in TIMES
        for of in ("mean", "median", "p99")
    },
    "spec_decode_acceptance_rate": "acceptance rate",
    "spec_decode_acceptance_length": "tokens per step",
}
PER_POSITION = "spec_decode_per_position_acceptance_rates"
MAX_POSITIONS = 8  # maximum number of draft positions that are shown

Results = dict[str, dict[str, Any]]


def show(heading: str, found: Results) -> None:
    """Print the results of all groups of requests side by side."""
    shown = Table("", *found)
    for key, label in SHOWN.items():
        values = [result.get(key) for result in found.values()]
        if any(value is not None for value in values):
            shown.add_row(label, *("" if v is None else f"{v:.2f}" for v in values))
    rates = [result.get(PER_POSITION) or [] for result in found.values()]
    for place in range(min(MAX_POSITIONS, max(map(len, rates)))):
        values = [each[place] if place < len(each) else None for each in rates]
        label = f"accepted at position {place}"
        shown.add_row(label, *("" if v is None else f"{v:.2f}" for v in values))
    Console(highlight=False).print(heading, shown, sep="\n", soft_wrap=True)


def write(file: Path, about: dict[str, Any], found: Results) -> None:
    """Write the results as JSON. The results of the first group of requests are at the top level.
    The results of each further group are nested under the name of that group.
    """
    first, *others = found
    whole = {"date": time.strftime("%Y%m%d-%H%M%S")} | about | found[first]
    whole |= {name: found[name] for name in others}
    file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def draw(file: Path, groups: Mapping[str, Sequence[Record]]) -> None:
    """Plot the latency distributions of each group of requests to a file. Raises Unusable if
    matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        problem = "matplotlib is not installed: pip install 'tandem-serving[bench]'"
        raise Unusable(problem) from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, name in zip(figure.subplots(2, 2).flat, TIMES, strict=True):
        for label, records in groups.items():
            good = [record for record in records if not record.error]
            values = sorted(value * 1000 for value in times(good)[name])
            parts = [(place + 1) / len(values) for place in range(len(values))]
            axes.step(values, parts, where="post", label=label)
        axes.set(title=name.upper(), xlabel="ms", ylabel="part of all", ylim=(0, 1))
        axes.legend()
    figure.savefig(file)
