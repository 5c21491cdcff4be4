"""Collect the status of the service, as `tandem status`, `tandem top` and the status page show it.
The module does not depend on gRPC or HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from tandem.orchestrator.fleet.replicas import Replicas, ReplicaStatus
from tandem.orchestrator.frontend.admission import Admission, ClientLoad
from tandem.orchestrator.frontend.history import Figures, History, Totals
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.metrics import FrontMetrics

SAMPLE_SECONDS = 1.0
BUSY_SECONDS = 10.0  # seconds between two log summaries while there are requests
MINUTE = 60.0

log = structlog.get_logger()


class Problems(Protocol):
    """Interface of an object that reports why the process cannot serve requests."""

    @property
    def problems(self) -> Sequence[str]:
        """The reasons why the process cannot serve requests; empty if it can."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the service at one moment. `problems` lists the reasons why no request can be
    served.
    """

    model: str
    tokenizer_fingerprint: str
    problems: tuple[str, ...]
    verifiers: tuple[ReplicaStatus, ...]
    drafters: tuple[ReplicaStatus, ...]
    running: int
    waiting: int
    clients: tuple[ClientLoad, ...]
    last_minute: Figures
    history: tuple[Figures, ...]


class Recorder:
    """Records the history of the front end's metrics, with timestamps of the monotonic clock."""

    def __init__(self, metrics: FrontMetrics, admission: Admission, ends: RequestLog) -> None:
        self._metrics = metrics
        self._admission = admission
        self._ends = ends
        self._history = History()
        self._history.add(time.monotonic(), self._totals())

    async def run(self) -> None:
        """Record the metrics every SAMPLE_SECONDS until cancelled. While there are requests, log a
        summary every BUSY_SECONDS.
        """
        logged = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            history = self.history()
            if time.monotonic() - logged >= BUSY_SECONDS:
                logged = time.monotonic()
                _log_activity(history.over(BUSY_SECONDS))

    def history(self) -> History:
        """Record the current totals, and return the history."""
        self._history.add(time.monotonic(), self._totals())
        return self._history

    def _totals(self) -> Totals:
        metrics, ends = self._metrics, self._ends.ends
        (tokens_without, seconds_without), (tokens_with, seconds_with) = metrics.speed
        return Totals(
            tokens=counted(metrics.generation_tokens),
            steps=counted(metrics.steps),
            steps_with_drafts=counted(metrics.steps_with_drafts),
            drafted=counted(metrics.drafted),
            accepted=counted(metrics.accepted),
            tokens_with_drafts=counted(tokens_with),
            seconds_with_drafts=counted(seconds_with),
            tokens_without_drafts=counted(tokens_without),
            seconds_without_drafts=counted(seconds_without),
            finished=ends["OK"],
            failed=ends.total() - ends["OK"],
            running=self._admission.running,
            waiting=self._admission.waiting,
        )


def counted(counter: Any) -> float:
    """Return the value of a Prometheus counter, summed over all its labels."""
    samples = (sample for metric in counter.collect() for sample in metric.samples)
    return float(sum(each.value for each in samples if each.name.endswith("_total")))


def _log_activity(figures: Figures) -> None:
    if not (figures.running or figures.waiting or figures.finished or figures.failed):
        return
    rates: Mapping[str, float | None] = {
        "acceptance_rate": figures.acceptance_rate,
        "mean_acceptance_length": figures.mean_acceptance_length,
    }
    log.info(
        "requests are served",
        running=figures.running,
        waiting=figures.waiting,
        finished=figures.finished,
        failed=figures.failed,
        tokens_per_second=round(figures.tokens_per_second, 1),
        **{name: round(rate, 3) for name, rate in rates.items() if rate is not None},
    )


class Overview:
    """Reads the status of the whole service."""

    def __init__(
        self,
        replicas: Replicas,
        admission: Admission,
        recorder: Recorder,
        health: Problems,
    ) -> None:
        self._replicas = replicas
        self._admission = admission
        self._recorder = recorder
        self._health = health

    async def read(self) -> Status:
        """Ask all replicas for their status, and return the status of the whole service."""
        verifiers, drafters = await self._replicas.status()
        names = [each.model.name for each in verifiers if each.model]
        problems = list(self._health.problems)
        if all(each.problem for each in verifiers) and not problems:
            problems.append("no verifier serves")
        history = self._recorder.history()
        return Status(
            model=names[0] if names else "",
            tokenizer_fingerprint=self._replicas.fingerprint,
            problems=tuple(problems),
            verifiers=tuple(verifiers),
            drafters=tuple(drafters),
            running=self._admission.running,
            waiting=self._admission.waiting,
            clients=self._admission.clients,
            last_minute=history.over(MINUTE),
            history=tuple(history.series()),
        )
