"""Who keeps round workers alive, and the one of this process in reserve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers.local import LocalSupervisor
from tandem.protos.types import ModelDescription


class Workers(Protocol):
    """Round workers that somebody keeps alive."""

    async def endpoint(self, index: int) -> str:
        """The address of worker `index`; waits until it runs."""

    def restart(self, index: int) -> None:
        """Have a worker restarted that does not answer."""


class Supervisor(Workers, Protocol):
    """All round workers of a front end. The one in `reserve` runs requests while no other is
    connected.
    """

    host: str  # the front end's, as the workers reach it
    access: Access
    count: int
    reserve: int | None


Supervising: TypeAlias = Callable[
    [OrchestratorConfig, ModelDescription], AbstractAsyncContextManager[Supervisor]
]
"""A supervisor while a scope lasts, for the model that verifiers serve."""


class ReserveSupervisor:
    """Workers in other processes, and behind them the one of this process: while there is no other,
    and should there never be one again.
    """

    def __init__(self, workers: Workers, count: int, local: LocalSupervisor, host: str) -> None:
        self.host, self.access, self.count = host, local.access, count + 1
        self.reserve: int | None = count
        self._workers, self._local = workers, local

    async def endpoint(self, index: int) -> str:
        """The address of worker `index`; waits until it runs."""
        return await (self._local if index == self.reserve else self._workers).endpoint(index)

    def restart(self, index: int) -> None:
        """Have a worker restarted that does not answer."""
        (self._local if index == self.reserve else self._workers).restart(index)
