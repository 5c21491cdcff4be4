"""Cause the faults that the alerts must detect, and measure the time from each fault until a
webhook receives the alert:

    python -m tandem.benchmarks.alerts

Two verifiers, two drafters and a front end serve the embedded models under load. The run begins
with a period without faults, in which no alert may fire and every health check must succeed. Then
the benchmark causes the faults one after another.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tandem import models
from tandem.benchmarks.alerts.system import load, running
from tandem.benchmarks.alerts.watchers import Webhook, watching
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers.checkout import save_untrained
from tandem.v1 import orchestrator_pb2 as api

MAX_SECONDS = 60.0  # maximum seconds from a fault to its alert
SLOW_SECONDS = {
    "TandemLatencySLOBurn": 1200.0,  # the alert examines an hour, most of which has no faults
    # the alert needs four errors, and each of the two clients waits 30 s for each error
    "TandemErrorRatioHigh": 180.0,
}
LONG = "Once upon a time there was a little girl. " * 30


class Fault(StrEnum):
    """The faults that the benchmark causes."""

    FAR_DRAFTER = "far-drafter"
    OVERLOAD = "overload"
    VERIFIER_KILLED = "verifier-killed"
    DRAFTER_KILLED = "drafter-killed"
    DRAFTERS_KILLED = "drafters-killed"
    VERIFIERS_KILLED = "verifiers-killed"
    BAD_DRAFTS = "bad-drafts"


ALERTS = {
    Fault.FAR_DRAFTER: ("TandemDrafterSlow",),
    Fault.OVERLOAD: ("TandemQueueBacklog", "TandemLatencySLOBurn", "TandemKVCacheNearlyFull"),
    Fault.VERIFIER_KILLED: ("TandemVerifierDown", "TandemTargetDown"),
    Fault.DRAFTER_KILLED: ("TandemDrafterUnavailable",),
    Fault.DRAFTERS_KILLED: ("TandemFallbackHigh",),
    Fault.VERIFIERS_KILLED: ("TandemNoVerifier", "TandemErrorRatioHigh"),
    Fault.BAD_DRAFTS: ("TandemAcceptanceCollapsed", "TandemSpeculationNetNegative"),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """An alert that a fault must fire. `seconds` is the time from the fault until the alert was
    reported, or None if the alert was not reported in time.
    """

    fault: Fault
    alert: str
    seconds: float | None
    early: bool  # whether the alert was firing before the fault

    def __str__(self) -> str:
        seconds = "not in time" if self.seconds is None else f"{self.seconds:5.1f} s"
        told = "was firing already" if self.early else seconds
        return f"{self.fault:18} {self.alert:30} {told}"


@dataclass(slots=True)
class Outcome:
    """The expected alerts of all faults, and when they fired. `clean` says whether the period
    without faults passed without alerts and without failed health checks.
    """

    clean: bool = True
    alerts: list[Expected] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every alert fired in time and not before its fault, and the period without faults
        was clean.
        """
        return self.clean and all(
            each.seconds is not None and not each.early for each in self.alerts
        )


async def expect(webhook: Webhook, fault: Fault, outcome: Outcome) -> None:
    """Wait for each alert of a fault, print how long it took, and add it to the outcome."""
    began, early = time.monotonic(), set(webhook.firing)
    for name in ALERTS[fault]:
        left = began + SLOW_SECONDS.get(name, MAX_SECONDS) - time.monotonic()
        came = await webhook.until(name, left)
        seconds = max(0.0, webhook.firing[name] - began) if came else None
        outcome.alerts.append(Expected(fault, name, seconds, name in early))
        print(outcome.alerts[-1], flush=True)


async def lost_and_slow(
    clean: float, faults: Collection[Fault], folder: Path, outcome: Outcome
) -> None:
    """After `clean` seconds without a fault, cause every fault that concerns processes, links or
    load.
    """
    async with (
        running(models.DRAFT, "--max-running", "8") as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 2),
    ):
        checks, alarms = await system.check(clean)
        print(
            f"{clean:.0f} s without a fault: {sorted(webhook.ever) or 'no alert'};"
            f" {alarms} of {checks} health checks failed",
            flush=True,
        )
        outcome.clean = not webhook.ever and not alarms
        happenings = {
            Fault.FAR_DRAFTER: system.far(),
            Fault.OVERLOAD: load(system.stub, 40, text=LONG),
            Fault.VERIFIER_KILLED: system.killed("verifier", 1),
            Fault.DRAFTER_KILLED: system.killed("drafter", 1),
            Fault.DRAFTERS_KILLED: system.killed("drafter", 2),
            Fault.VERIFIERS_KILLED: system.killed("verifier", 2),
        }
        for fault, happening in happenings.items():
            if fault in faults:
                async with happening:
                    await expect(webhook, fault, outcome)


async def bad_drafts(folder: Path, outcome: Outcome) -> None:
    """Run the system with an untrained drafter. Most requests use rejection sampling, because the
    verifier then verifies every draft.
    """
    async with (
        running(save_untrained(models.DRAFT, folder / "draft")) as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 3, rule=api.AcceptanceRule.Value("ACCEPTANCE_RULE_REJECT")),
    ):
        await expect(webhook, Fault.BAD_DRAFTS, outcome)


def main(
    clean: Annotated[float, typer.Option(help="seconds of load before the first fault")] = 30.0,
    fault: Annotated[list[Fault], typer.Option(help="fault; may be repeated")] = list(Fault),  # noqa: B006
    json: report.JsonFile = None,
) -> None:
    """Cause the faults that the alerts must detect, and check that each alert fires. Exits with 1
    if an alert does not fire in time, if an alert fires before its fault, or if a health check
    fails before the first fault.
    """
    outcome = Outcome()

    async def both(folder: Path) -> None:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        await lost_and_slow(clean, fault, folder / "one", outcome)
        if Fault.BAD_DRAFTS in fault:
            await bad_drafts(folder / "two", outcome)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both(Path(folder)))
    if json:
        heading = f"alerts after their faults, {described('one thread per model')}"
        report.write(heading, [asdict(each) for each in outcome.alerts], json)
    if not outcome.good:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
