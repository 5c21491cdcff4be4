"""An OpenTelemetry collector that takes spans over OTLP, like any real collector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from grpc import aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc


@dataclass(frozen=True)
class SpanReceived:
    """A span, and the name of the service that made it."""

    service: str
    name: str
    trace: str
    own: str
    parent: str
    seconds: float
    attributes: dict[str, Any]


@dataclass
class Collector(otlp_grpc.TraceServiceServicer):
    """A collector that keeps every span that it gets."""

    address: str = ""
    spans: list[SpanReceived] = field(default_factory=list)

    async def Export(self, request: Any, context: Any) -> Any:
        for each in request.resource_spans:
            service = values(each.resource.attributes)["service.name"]
            found = (span for scope in each.scope_spans for span in scope.spans)
            self.spans += [received(service, span) for span in found]
        return otlp.ExportTraceServiceResponse()

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"


def values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def received(service: str, span: Any) -> SpanReceived:
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    return SpanReceived(service, span.name, *ids, seconds, values(span.attributes))


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector while the scope lasts."""
    server, collector = aio.server(), Collector()
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
