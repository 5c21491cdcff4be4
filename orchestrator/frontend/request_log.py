"""Log one line at the end of every request: its client, outcome and statistics, but never its
prompt or answer.

The module does not depend on gRPC or HTTP. A servicer handles each request inside the context
manager `logged`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from tandem.orchestrator.requests.answer import AnswerBuilder
from tandem.orchestrator.requests.request import Request
from tandem.protos.errors import TandemError

MAX_ID_LENGTH = 128  # longer request ids, which clients may choose, are cut off
MAX_PROBLEM_LENGTH = 200  # longer error messages are cut off
NOT_REFUSED = ("CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL")

log = structlog.get_logger()


@dataclass(slots=True)
class RequestProgress:
    """The progress of a request. `answer` is set once the request is found valid, and `complete`
    once the whole answer has been generated. A complete request counts as successful even if the
    client disconnects before the call ends.
    """

    answer: AnswerBuilder | None = None
    complete: bool = False


class RequestLog:
    """Logs the end of each request, and counts the ended requests by gRPC status code."""

    def __init__(self, ended: Callable[[str], None] = lambda code: None) -> None:
        self.ends: Counter[str] = Counter()
        self._ended = ended

    def reporting(self, ended: Callable[[str], None]) -> RequestLog:
        """Return a second log, for another protocol, that uses the same counters as this log. The
        second log calls `ended` with the status code of each request that is logged through it.
        """
        log = RequestLog(ended)
        log.ends = self.ends
        return log

    @contextmanager
    def logged(
        self, request: Request, timed_out: Callable[[], bool] = lambda: False
    ) -> Iterator[RequestProgress]:
        """Log the end of the request that is served inside this context. All log lines written
        inside the context have the request's id. If the request is cancelled, `timed_out` tells
        whether its deadline has passed. Errors inside the context are raised again.
        """
        progress, began, code, problem = RequestProgress(), time.monotonic(), "INTERNAL", ""
        with structlog.contextvars.bound_contextvars(request_id=request.request_id[:MAX_ID_LENGTH]):
            try:
                yield progress
                code = "OK"
            except TandemError as error:
                code, problem = error.status, str(error)[:MAX_PROBLEM_LENGTH]
                raise
            except (asyncio.CancelledError, GeneratorExit):
                left = "DEADLINE_EXCEEDED" if timed_out() else "CANCELLED"
                code = "OK" if progress.complete else left
                raise
            finally:
                self.ends[code] += 1
                self._ended(code)
                seconds = time.monotonic() - began
                fields = {"client": request.caller, "code": code, "problem": problem}
                fields = {name: field for name, field in fields.items() if field}
                _log(code, fields | {"seconds": round(seconds, 4)} | _figures(progress.answer))

    @contextmanager
    def decoding(self, request_id: str) -> Iterator[None]:
        """Log a request as refused if decoding it inside this context fails with a TandemError. The
        error is raised again.
        """
        try:
            yield
        except TandemError:
            with self.logged(Request(request_id=request_id)):
                raise


def _log(code: str, fields: dict[str, Any]) -> None:
    """Log the end of a request as finished, failed or refused. A request that fails before it
    starts to run counts as refused, unless its client disconnected, its deadline passed or an
    internal error occurred.
    """
    if code == "OK":
        log.info("a request has finished", **fields)
    elif "queue_seconds" in fields or code in NOT_REFUSED:
        log.info("a request has failed", **fields)
    else:
        log.info("a request was refused", **fields)


def _figures(answer: AnswerBuilder | None) -> dict[str, Any]:
    """Return the token counts, times and speculation statistics of an answer so far."""
    if answer is None:
        return {}
    now = answer.so_far()
    stats = now.speculation
    figures: dict[str, Any] = {
        "prompt_tokens": now.prompt_tokens,
        "completion_tokens": len(now.token_ids),
        "cached_tokens": now.cached_tokens,
    }
    if now.finish:
        figures["finish"] = now.finish.name.lower()
    if answer.has_started:
        figures["queue_seconds"] = round(now.queue_seconds, 4)
    if not stats.steps:
        return figures
    return figures | {
        "first_token_seconds": round(now.first_token_seconds, 4),
        "steps": stats.steps,
        "draft_tokens": stats.drafted,
        "mean_acceptance_length": round(stats.mean_acceptance_length, 3),
        "acceptance_rate": round(stats.draft_acceptance_rate, 3),
        "drafter_switches": stats.drafter_switches,
        "verifier_switches": stats.verifier_switches,
    }
