"""Serve a drafter or a verifier on its gRPC port."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from prometheus_client import CollectorRegistry

from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import Host
from tandem.engine.streams import StreamServer
from tandem.protos.transport import rpc
from tandem.protos.transport.calls import CallMetrics
from tandem.protos.transport.guard import Peers


def serving(
    config: ModelServiceConfig,
    host: Host,
    service: object,
    streams: StreamServer[Any, Any],
    registry: CollectorRegistry,
) -> AbstractAsyncContextManager[str]:
    """Return a context manager that serves the model of `host` and, on exit, waits until all
    streams are drained. The context manager's value is the address of the service. Raises Unusable
    if the port is in use.
    """
    guard = Peers(config.peers) if config.tls else None
    return rpc.serving(
        config.host,
        config.port,
        service,
        health=host.health,
        drained=streams.drained,
        calls=CallMetrics(registry),
        security=rpc.Security(config.tls, guard),
    )
