"""Draw the distributions of the times, with drafts and without, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tandem.benchmarks.serve.record import Record
from tandem.benchmarks.serve.summary import TIMES, times
from tandem.protos.errors import Unusable


def draw(file: Path, groups: Mapping[str, Sequence[Record]]) -> None:
    """Draw the times of each group to a file; raises Unusable if matplotlib is not installed."""
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
