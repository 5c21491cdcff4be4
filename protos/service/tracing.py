"""Creates OpenTelemetry spans, but only inside the context manager `exporting`. Only this module
uses OpenTelemetry.

Other processes refer to a span by its W3C `traceparent`, which is a string; an empty string means
that there is no span.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from time import time_ns
from typing import Any

import structlog

from tandem.protos.errors import Unusable

TRACEPARENT = "traceparent"  # key in the metadata of calls
W3C = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
EXPORT_SECONDS = 2  # timeout, in seconds, for sending spans to a collector
log = structlog.get_logger()


@dataclass(slots=True)
class Span:
    """A span of one operation, which may extend over several calls and threads. If tracing is off,
    the object only holds the `traceparent` to pass on.
    """

    traceparent: str
    _tracer: Any = None
    _span: Any = None
    _context: Any = None
    _since: int = 0  # time at which the newest part ended

    def part(self, name: str, **attributes: str | float) -> None:
        """Add a child span that began when the previous part ended, and that ends now."""
        if self._span is not None:
            began, self._since = self._since, time_ns()
            part = self._tracer.start_span(
                name, self._context, attributes=attributes, start_time=began
            )
            part.end(self._since)

    def end(self, error: BaseException | None = None, **attributes: str | float) -> None:
        """End the span. If there is an `error`, its type is recorded, but not its message."""
        if self._span is not None:
            if error:
                attributes["error.type"] = type(error).__name__
            self._span.set_attributes(attributes)
            self._span.end()


_tracer: Any = None


def begin(name: str, parent: str = "", **attributes: str | float) -> Span:
    """Begin a span. If `parent` is the traceparent of another span, the new span is its child."""
    if _tracer is None:
        return Span(parent)
    from opentelemetry import trace

    began = time_ns()
    above = _propagator().extract({TRACEPARENT: parent})
    span = _tracer.start_span(name, above, attributes=attributes, start_time=began)
    context = trace.set_span_in_context(span)
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, context)
    own = carrier.get(TRACEPARENT, "")
    return Span(own, _tracer, span if span.is_recording() else None, context, began)


@contextmanager
def during(name: str, parent: str = "", **attributes: str | float) -> Iterator[Span]:
    """Context manager that records a span for the duration of its body."""
    span, problem = begin(name, parent, **attributes), None
    try:
        yield span
    except BaseException as error:
        problem = error
        raise
    finally:
        span.end(problem)


def given(traceparent: str) -> str:
    """Return the `traceparent` that a client sent, or an empty string if it is malformed."""
    return traceparent if W3C.fullmatch(traceparent) else ""


def metadata(traceparent: str) -> Sequence[tuple[str, str]]:
    """Return call metadata that carries a `traceparent`; empty if there is no span."""
    return ((TRACEPARENT, traceparent),) if traceparent else ()


def current() -> str:
    """Return the `traceparent` of the current span; empty if the program uses no OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return ""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get(TRACEPARENT, "")


class Reported(logging.Handler):
    """Writes the exporter's log records to this process's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record of the exporter. The standard library calls this."""
        log.warning("traces are not exported", problem=" ".join(record.getMessage().split())[:200])


@contextmanager
def exporting(endpoint: str, service: str) -> Iterator[None]:
    """Context manager in which this process creates spans and sends them to a collector. Without an
    endpoint, no spans are created. Raises Unusable.
    """
    global _tracer
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        install = "pip install 'tandem-serving[traces]'"
        raise Unusable(f"otlp_endpoint needs {error.name}: {install}") from error
    reports, exporter = logging.getLogger("opentelemetry"), Reported()
    reports.addHandler(exporter)
    reports.propagate = False
    release = version("tandem-serving")
    resource = Resource.create({"service.name": service, "service.version": release})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    sender = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(sender))
    _tracer = provider.get_tracer("tandem", release)
    try:
        yield
    finally:
        _tracer = None
        provider.shutdown()
        reports.removeHandler(exporter)


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
