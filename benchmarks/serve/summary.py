"""Compute metrics from the records of requests, with the names that vLLM's `bench serve` uses."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from tandem.benchmarks.serve.record import Drafts, Record

PERCENTILES = (50, 90, 95, 99)
TIMES = ("ttft", "tpot", "itl", "e2el")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest values as in numpy. Return 0 if
    there are no values.
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def results(
    records: Sequence[Record], duration: float, limits: Mapping[str, float]
) -> dict[str, Any]:
    """Return all metrics of a group of requests, which took `duration` seconds in total."""
    good = [record for record in records if not record.error]
    tokens, prompts = sum(r.tokens for r in good), sum(r.prompt_tokens for r in good)
    within = sum(record.meets(limits) for record in good)
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(good) / duration,
        "request_goodput": within / duration if limits else None,
        "output_throughput": tokens / duration,
        "total_token_throughput": (tokens + prompts) / duration,
    }
    for name, values in times(good).items():
        found |= _spread(name, [value * 1000 for value in values])
    errors = [record.error for record in records if record.error]
    return found | acceptance(good) | {"errors": errors}


def times(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return latencies in seconds, by name: to the first token (`ttft`), per later token (`tpot`),
    between arrivals (`itl`), and to the last token (`e2el`).
    """
    per_token = [record.per_token for record in records]
    return {
        "ttft": [record.first for record in records],
        "tpot": [value for value in per_token if value is not None],
        "itl": [gap for record in records for gap in record.gaps],
        "e2el": [record.total for record in records],
    }


def acceptance(records: Sequence[Record]) -> dict[str, Any]:
    """Return the acceptance metrics, or an empty mapping if no steps are recorded."""
    drafts = reduce(add, (record.drafts for record in records), Drafts())
    if not drafts.steps:
        return {}
    tokens = sum(record.tokens for record in records)
    return {
        "spec_decode_num_drafts": drafts.with_drafts,
        "spec_decode_draft_tokens": drafts.drafted,
        "spec_decode_accepted_tokens": drafts.accepted,
        "spec_decode_acceptance_rate": drafts.accepted / drafts.drafted if drafts.drafted else 0.0,
        "spec_decode_acceptance_length": tokens / drafts.steps,
        "spec_decode_per_position_acceptance_rates": drafts.per_position(),
    }


def by_category(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return the acceptance metrics and the milliseconds per token for each category of prompts.
    The result is empty if the prompts have no categories.
    """
    found = {}
    for category in sorted({record.category for record in records if record.category}):
        own = [each for each in records if each.category == category and not each.error]
        per_token = [value * 1000 for value in times(own)["tpot"]]
        mean = statistics.fmean(per_token) if per_token else 0.0
        found[category] = {"completed": len(own), "mean_tpot_ms": mean} | acceptance(own)
    return found


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    spread = {f"p{percent}_{name}_ms": percentile(values, percent) for percent in PERCENTILES}
    return {
        f"mean_{name}_ms": statistics.fmean(values) if values else 0.0,
        f"median_{name}_ms": percentile(values, 50),
        f"std_{name}_ms": statistics.pstdev(values) if values else 0.0,
    } | spread
