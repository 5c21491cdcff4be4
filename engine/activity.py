"""While the model is in use, log its throughput, open sessions and memory use every few seconds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from tandem.engine.cache.sessions import Sessions
from tandem.engine.schedule.progress import StepReport

LINE_SECONDS = 10.0

log = structlog.get_logger()


@dataclass(slots=True)
class Passes:
    """Totals of the forward passes since the last log line: passes, tokens and seconds."""

    count: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Activity:
    """Counts forward passes on the model thread, and logs them on the event loop."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._passes = Passes()

    def observe(self, report: StepReport) -> None:
        """Count one forward pass."""
        passes = self._passes
        passes.count += 1
        passes.tokens += report.tokens
        passes.seconds += report.seconds

    async def run(self) -> None:
        """Log a line every LINE_SECONDS if a forward pass ran meanwhile. Runs until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LINE_SECONDS)
            passes, self._passes = self._passes, Passes()
            if passes.count:
                seconds = time.monotonic() - began
                log.info(
                    "the model is used",
                    passes_per_second=round(passes.count / seconds, 1),
                    tokens_per_second=round(passes.tokens / seconds, 1),
                    busy=round(passes.seconds / seconds, 3),
                    sessions=len(self._sessions),
                    kv_cache_usage=round(self._sessions.usage, 4),
                )
