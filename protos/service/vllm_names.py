"""Exports Tandem's metrics under vLLM's names, so that dashboards and queries for vLLM work. Only
metrics that vLLM defines in the same way are included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

OURS, THEIRS = "tandem_", "vllm:"
MODEL = "tandem_model_info"  # the label `model` of this metric is the name of the model
SAME = frozenset(
    OURS + name
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
    )
)


class VLLMNames:
    """Collects a registry's metrics under vLLM's prefix, with the label `model_name`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the renamed metrics. The Prometheus client library calls this."""
        from prometheus_client.core import Metric

        found = list(self._registry.collect())
        models = [sample for each in found if each.name == MODEL for sample in each.samples]
        model = {"model_name": models[0].labels["model"] if models else ""}
        for each in found:
            if each.name not in SAME:
                continue
            metric = Metric(_renamed(each.name), each.documentation, each.type)
            metric.samples = [
                sample._replace(name=_renamed(sample.name), labels=model | sample.labels)
                for sample in each.samples
            ]
            yield metric


def _renamed(name: str) -> str:
    return THEIRS + name.removeprefix(OURS)
