"""What a process is, as metrics whose labels are the information: its version, and its model.

For queries that join other metrics with them.
"""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge

from tandem.protos.types import ModelDescription


def report_build(registry: CollectorRegistry) -> None:
    """The version of Tandem that runs."""
    gauge = Gauge("tandem_build_info", "1; the version", ("version",), registry=registry)
    gauge.labels(version("tandem-serving")).set(1)


def report_model(registry: CollectorRegistry, model: ModelDescription) -> None:
    """The model that the process holds, or, at an orchestrator, that its verifiers hold."""
    gauge = Gauge(
        "tandem_model_info",
        "1; the model, and how it is computed",
        ("model", "dtype", "device", "fingerprint"),
        registry=registry,
    )
    gauge.labels(model.name, model.dtype, model.device, model.fingerprint).set(1)
