"""Compare the goodput of the drafting policy in simulated worlds with the goodput of the best fixed
draft shape and of plain decoding.

Time is simulated and all random numbers are seeded, so a run gives the same results on every
machine. The real code of the services decides how much is drafted and verified. Simulated models,
kernels and networks compute nothing, but take simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean
from typing import Annotated, Any

import typer
from rich.progress import track
from rich.table import Table

from tandem.benchmarks.figures import report
from tandem.benchmarks.goodput.policy import PLAIN, TANDEM, Policy, families
from tandem.benchmarks.goodput.simulation import Simulation
from tandem.benchmarks.goodput.world import World, worlds
from tandem.protos.service.process import configure_logging

# if a shape yields less than this share of the best goodput so far, no larger shape is tried
BEHIND = 0.93


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens per second in one world, averaged over the seeds. The warm-up at the start of each
    run is excluded.
    """

    name: str
    plain: float
    best: str  # name of the best fixed shape
    fixed: float
    policy: float

    @property
    def to_fixed(self) -> float:
        """The policy's goodput divided by the goodput of the best fixed shape."""
        return self.policy / self.fixed

    @property
    def to_plain(self) -> float:
        """The policy's goodput divided by the goodput of plain decoding."""
        return self.policy / self.plain


def measure(world: World, seeds: int) -> Row:
    """Measure one world with the drafting policy, plain decoding and fixed draft shapes."""

    def goodput(policy: Policy) -> float:
        return fmean(Simulation(world, policy, seed).run() for seed in range(seeds))

    plain = goodput(PLAIN)
    found = {PLAIN.name: plain}
    for family in families():
        found |= rising(family, goodput, plain)
    best = max(found, key=lambda name: found[name])
    return Row(world.name, plain, best, found[best], goodput(TANDEM))


def rising(
    family: Iterable[Policy], goodput: Callable[[Policy], float], best: float
) -> dict[str, float]:
    """Return the goodput of increasingly large draft shapes, up to the first shape that falls
    clearly behind the best one.
    """
    found: dict[str, float] = {}
    for policy in family:
        found[policy.name] = goodput(policy)
        if found[policy.name] < BEHIND * best:
            break
        best = max(best, found[policy.name])
    return found


def table(rows: Sequence[Row]) -> Table:
    """Return the results as a table to print."""
    shown = Table("world", "plain", "best fixed shape", box=None)
    for heading in ("its goodput", "policy", "policy/\nfixed", "policy/\nplain"):
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(
            *(row.name, f"{row.plain:.0f}", row.best, f"{row.fixed:.0f}", f"{row.policy:.0f}"),
            *(f"{row.to_fixed:.2f}", f"{row.to_plain:.2f}"),
        )
    shown.add_row(
        *("geometric mean", "", "", "", ""),
        f"{geometric_mean(row.to_fixed for row in rows):.3f}",
        f"{geometric_mean(row.to_plain for row in rows):.3f}",
    )
    return shown


def entry(row: Row) -> dict[str, Any]:
    """Return the fields of a row for the JSON file."""
    return asdict(row) | {"to_fixed": row.to_fixed, "to_plain": row.to_plain}


def main(
    worlds_: Annotated[
        int | None,
        typer.Option("--worlds", help="number of worlds to simulate; default: all", min=1),
    ] = None,
    seeds: Annotated[int, typer.Option(help="runs of each world", min=1)] = 1,
    json: report.JsonFile = None,
) -> None:
    """Simulate the drafting policy, and print its goodput."""
    configure_logging("warning")
    chosen = list(worlds())
    chosen = chosen[:: -(-len(chosen) // (worlds_ or len(chosen)))]
    rows = [measure(world, seeds) for world in track(chosen, "simulating", transient=True)]
    heading = f"tokens per simulated second after warm-up: {len(rows)} worlds, {seeds} seeds each"
    report.publish(heading, table(rows), [entry(row) for row in rows], json)


if __name__ == "__main__":
    typer.run(main)
