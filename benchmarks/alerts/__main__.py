"""Make each alert fire by its fault, and measure how long it takes until the webhook is called:

    python -m tandem.benchmarks.alerts

Two of each service run on the embedded pair in processes of their own, under load. First there is
no fault for a while: no alert may fire, and no process may report that it does not serve. Then one
fault follows another.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tandem import models
from tandem.benchmarks.alerts.system import load, running
from tandem.benchmarks.alerts.watchers import Webhook, watching
from tandem.benchmarks.peers.checkout import ignorant
from tandem.v1 import orchestrator_pb2 as api

MOST_SECONDS = 60.0
SLOW_SECONDS = {
    "TandemLatencySLOBurn": 1200.0,  # the alert looks back an hour, of which most was good
    "TandemErrorRatioHigh": 180.0,  # two clients wait 30 s for an error, the alert needs four
}
LONG = "Once upon a time there was a little girl. " * 30


class Fault(StrEnum):
    """The faults that are made."""

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


async def expect(webhook: Webhook, fault: Fault) -> bool:
    """Print how long each alert of a fault took; return whether all came in time."""
    began, all_came = time.monotonic(), True
    for name in set(ALERTS[fault]) & set(webhook.firing):
        print(f"{fault:18} {name:30} was firing already", flush=True)
        all_came = False
    for name in ALERTS[fault]:
        left = began + SLOW_SECONDS.get(name, MOST_SECONDS) - time.monotonic()
        came = await webhook.until(name, left)
        seconds = f"{webhook.firing[name] - began:5.1f} s" if came else "not in time"
        print(f"{fault:18} {name:30} {seconds}", flush=True)
        all_came &= came
    return all_came


async def lost_and_slow(clean: float, faults: Collection[Fault], folder: Path) -> bool:
    """Make the faults of processes, links and load. Returns whether all went as it must."""
    async with (
        running(models.DRAFT, "--max-running", "8") as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 2),
    ):
        checks, alarms = await system.check(clean)
        print(
            f"{clean:.0f} clean seconds: {sorted(webhook.ever) or 'no alert'}; {alarms} of {checks}"
            " health checks failed",
            flush=True,
        )
        good = not webhook.ever and not alarms
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
                    good &= await expect(webhook, fault)
    return good


async def bad_drafts(folder: Path) -> bool:
    """Run a drafter that was never trained, with a rule that verifies every draft. Returns whether
    the alerts came.
    """
    async with (
        running(ignorant(models.DRAFT, folder / "draft")) as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 3, rule=api.AcceptanceRule.Value("ACCEPTANCE_RULE_REJECT")),
    ):
        return await expect(webhook, Fault.BAD_DRAFTS)


def main(
    clean: Annotated[float, typer.Option(help="seconds of load without a fault, at first")] = 30.0,
    fault: Annotated[list[Fault], typer.Option(help="fault; may be repeated")] = list(Fault),  # noqa: B006
) -> None:
    """Make each alert fire by its fault. Exits with 1 if an alert fires without a fault, or too
    late after its own.
    """

    async def both(folder: Path) -> bool:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        good = await lost_and_slow(clean, fault, folder / "one")
        return (Fault.BAD_DRAFTS not in fault or await bad_drafts(folder / "two")) and good

    with tempfile.TemporaryDirectory() as folder:
        if not asyncio.run(both(Path(folder))):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
