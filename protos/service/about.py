"""Reports the version and model of a process as labels of metrics, so that queries can add these
labels to other metrics. The process also announces its model on standard output, for `tandem up`.
"""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge

from tandem.protos.service.process import announce
from tandem.protos.types import ModelDescription


def report_build(registry: CollectorRegistry) -> None:
    """Report the version of Tandem as a metric."""
    gauge = Gauge(
        "tandem_build_info", "Always 1; the label is the version", ("version",), registry=registry
    )
    gauge.labels(version("tandem-serving")).set(1)


def report_model(registry: CollectorRegistry, model: ModelDescription) -> None:
    """Report the model of the process as a metric. An orchestrator reports the model of its
    verifiers.
    """
    gauge = Gauge(
        "tandem_model_info",
        "Always 1; the labels are the model and how it is computed",
        ("model", "dtype", "device", "fingerprint"),
        registry=registry,
    )
    gauge.labels(model.name, model.dtype, model.device, model.fingerprint).set(1)


def report_drafter(registry: CollectorRegistry, model: ModelDescription) -> None:
    """Report as metrics how a drafter's tokenizer differs from the target's."""
    likeness = Gauge(
        "tandem_draft_tokenizer_info",
        "Always 1; the tokenizer compared to the target's: equal, nearly equal or foreign",
        ("tokenizer",),
        registry=registry,
    )
    likeness.labels(model.tokenizer).set(1)
    masked = Gauge(
        "tandem_draft_masked_tokens",
        "Tokens that are never proposed, because their ids mean something else to the target",
        registry=registry,
    )
    masked.set(model.masked_tokens)


def announce_model(model: ModelDescription) -> None:
    """Write the description of the loaded model to standard output, for `tandem up`."""
    announce(
        "loaded",
        model=model.name,
        device=model.device,
        dtype=model.dtype,
        weights_bytes=model.weights_bytes,
        context_length=model.context_length,
        full_sessions=model.full_sessions,
        cache_positions=model.cache_positions,
        exactness=model.exactness,
        kernels=model.kernels,
        tokenizer=model.tokenizer,
        masked_tokens=model.masked_tokens,
    )
