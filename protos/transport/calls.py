"""Counts the calls that a server answers, and their durations and bytes.

This module knows methods by their names only. A method that does not exist is counted as "unknown",
so that callers cannot add series to the metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc import aio
from prometheus_client import CollectorRegistry, Counter, Histogram

UNKNOWN = ("unknown", "unknown")
USUAL_CODES = (
    *("OK", "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"),
    *("UNAVAILABLE", "INTERNAL", "UNAUTHENTICATED", "PERMISSION_DENIED"),
)
DURATION_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60)
# Because clocks differ, a deadline may have passed for the caller while some time is left on the
# server: at most NEAR_SECONDS or NEAR_FRACTION of the time limit, whichever is longer.
NEAR_SECONDS, NEAR_FRACTION = 0.05, 0.02

Code = Callable[[str], None]


class CallMetrics:
    """Counts calls in a Prometheus registry. `ended` maps a method to a function that is called at
    the end of every call of the method, with the status code of the call.
    """

    def __init__(
        self, registry: CollectorRegistry, ended: Mapping[str, Code] | None = None
    ) -> None:
        self._ended = ended or {}
        self._methods: dict[str, tuple[str, str]] = {}
        self._total = Counter(
            "tandem_rpc",
            "Calls that ended, by status code",
            ("service", "method", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "tandem_rpc_duration_seconds",
            "Durations of calls, from start to end",
            ("service", "method"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._bytes = Counter(
            "tandem_wire_bytes",
            "Bytes of the messages that the services of this process sent or received",
            ("service", "direction"),
            registry=registry,
        )
        self._total.labels(*UNKNOWN, "UNIMPLEMENTED")

    def know(self, services: Iterable[str]) -> None:
        """Create the metric series of all methods of these services, before any call."""
        for service in services:
            for direction in ("received", "sent"):
                self._bytes.labels(service, direction)
            for method in descriptor_pool.Default().FindServiceByName(service).methods:
                labels = self._methods[f"/{service}/{method.name}"] = (service, method.name)
                self._seconds.labels(*labels)
                for code in USUAL_CODES:
                    self._total.labels(*labels, code)

    def observe(self, method: str, context: aio.ServicerContext[Any, Any]) -> None:
        """Begin to measure a call. The call is counted when it has ended, for whatever reason."""
        left = context.time_remaining()
        near = max(NEAR_SECONDS, NEAR_FRACTION * left) if left is not None else 0.0
        began = time.perf_counter()

        def count(ended: aio.ServicerContext[Any, Any]) -> None:
            self._count(method, began, near, ended)

        context.add_done_callback(count)  # type: ignore[arg-type]  # its stub is no protocol

    def unknown(self) -> None:
        """Count a call of a method that does not exist."""
        self._total.labels(*UNKNOWN, "UNIMPLEMENTED").inc()

    def counting(self, method: str, direction: str, convert: Any) -> Any:
        """Return a serialiser or deserialiser for a method, depending on `direction`, that also
        counts bytes. The conversion itself is done by `convert`. If `convert` is None, the bytes
        stay unchanged.
        """
        service, _ = self._methods.get(method, UNKNOWN)
        count = self._bytes.labels(service, direction).inc

        def serialise(message: Any) -> bytes:
            payload: bytes = convert(message) if convert else message
            count(len(payload))
            return payload

        def deserialise(payload: bytes) -> Any:
            count(len(payload))
            return convert(payload) if convert else payload

        return serialise if direction == "sent" else deserialise

    def _count(
        self, method: str, began: float, near: float, context: aio.ServicerContext[Any, Any]
    ) -> None:
        labels, code = self._methods.get(method, UNKNOWN), code_of(context, near)
        self._total.labels(*labels, code).inc()
        self._seconds.labels(*labels).observe(time.perf_counter() - began)
        if ended := self._ended.get(method):
            ended(code)


def code_of(context: aio.ServicerContext[Any, Any], near: float) -> str:
    """Return the name of the status code that the caller of an ended call received. gRPC ends a
    call in the same way when the caller cancels it and when its deadline passes. Such a call counts
    as DEADLINE_EXCEEDED if at most `near` seconds were left until the deadline.
    """
    if code := context.code():
        return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    if context.done():
        return "OK"
    left = context.time_remaining()
    return "CANCELLED" if left is None or left > near else "DEADLINE_EXCEEDED"
