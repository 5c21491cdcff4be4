"""What the front end counts: for one request, and for Prometheus, in the same place.

Counters live in the front end because round workers come and go; a summary and the counters grow by
the same messages, so they always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2

GAP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


Counters: TypeAlias = Callable[..., Counter]
Gauges: TypeAlias = Callable[..., Gauge]
Histograms: TypeAlias = Callable[..., Histogram]


@dataclass(slots=True)
class Tally:
    """The speculation figures of one request."""

    wanted: bool = True  # guesses
    steps: int = 0
    guided: int = 0  # steps with guesses
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    late: int = 0
    unused: int = 0
    drafter_switches: int = 0
    verifier_switches: int = 0
    histogram: list[int] = field(default_factory=list)

    def add(self, step: rounds_pb2.RunResponse) -> None:
        """Count one step."""
        self.steps += 1
        self.guided += step.drafted > 0
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.emitted += len(step.tokens)
        self.late += step.late
        self.unused += step.unused
        self.drafter_switches = max(self.drafter_switches, step.drafter_switches)
        self.verifier_switches = max(self.verifier_switches, step.verifier_switches)
        self.histogram += [0] * (step.accepted + 1 - len(self.histogram))
        self.histogram[step.accepted] += 1

    def summary(self, rule: api.AcceptanceRule.ValueType) -> api.SpeculationSummary:
        """As the client sees it."""
        return api.SpeculationSummary(
            num_spec_steps=self.steps,
            num_steps_with_guesses=self.guided,
            num_draft_tokens=self.drafted,
            num_accepted_draft_tokens=self.accepted,
            mean_acceptance_length=self.emitted / self.steps if self.steps else 0.0,
            draft_acceptance_rate=self.accepted / self.drafted if self.drafted else 0.0,
            acceptance_histogram=self.histogram,
            num_late_draft_tokens=self.late,
            num_unused_draft_tokens=self.unused,
            fallback_rounds=self.steps - self.guided if self.wanted else 0,
            drafter_switches=self.drafter_switches,
            verifier_switches=self.verifier_switches,
            rule=rule or api.ACCEPTANCE_RULE_MATCH,
        )


def makers(registry: CollectorRegistry) -> tuple[Counters, Gauges, Histograms]:
    """What makes metrics with our prefix: counters, gauges, histograms."""

    def counter(name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tandem_{name}", text, labels, registry=registry)

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tandem_{name}", text, labels, registry=registry)

    def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"tandem_{name}", text, labels, buckets=buckets, registry=registry)

    return counter, gauge, histogram


class FrontMetrics:
    """The front end's Prometheus metrics; suffixes are vLLM's so that existing queries port."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, _ = makers(registry)
        self.steps = counter("steps", "Steps of the verifier, each of one session")
        self.guided = counter("spec_decode_num_drafts", "Steps with guesses")
        self.fallback = counter(
            "speculation_fallback", "Steps without guesses though some were wanted"
        )
        self.drafted = counter("spec_decode_num_draft_tokens", "Guessed tokens verified")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Guessed tokens accepted")
        self.expected = counter(
            "spec_decode_num_expected_tokens", "Guessed tokens that the verifier expected to accept"
        )
        self.late = counter(
            "spec_decode_num_late_tokens", "Guessed tokens that arrived behind the text"
        )
        self.unused = counter(
            "spec_decode_num_unused_tokens", "Guessed tokens that were never worth a row"
        )
        tokens = counter("step_tokens", "Tokens emitted, but by first steps", "guesses")
        seconds = counter("step_seconds", "Time of all but first steps", "guesses")
        self.speed = [(tokens.labels(each), seconds.labels(each)) for each in ("no", "yes")]
        trip = gauge("service_round_trip_seconds", "A service's distance, smoothed", "service")
        self.verifier_trip, self.drafter_trip = trip.labels("verifier"), trip.labels("drafter")
        self.accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Steps that accepted beyond a position",
            "position",
        )
        self._requests(registry)

    def _requests(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.generation_tokens = counter("generation_tokens", "Tokens emitted")
        self.finished = counter("request_success", "Finished requests", "finished_reason")
        self.resumes = counter("request_resumes", "Requests moved to another round worker")
        self.running = gauge("num_requests_running", "Requests that are decoded")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for a place")
        self.draft_length = histogram("draft_length", "Guessed tokens per step", LENGTHS)
        self.accepted_length = histogram(
            "accepted_length", "Accepted guessed tokens per step", LENGTHS
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "Arrival to first token", REQUEST_SECONDS
        )
        self.gap = histogram(
            "inter_token_latency_seconds", "Gap between streamed outputs", GAP_SECONDS
        )
        self.per_token = histogram(
            "time_per_output_token_seconds", "Amortised, after the first", GAP_SECONDS
        )
        self.total = histogram(
            "e2e_request_latency_seconds", "Arrival to last token", REQUEST_SECONDS
        )
        self.queue = histogram("request_queue_time_seconds", "Waiting for a place", REQUEST_SECONDS)

    def add(self, step: rounds_pb2.RunResponse, wanted: bool, first: bool) -> None:
        """Count one step. A first one is no measure of speed: it waits for the prompt."""
        self.steps.inc()
        if step.drafted:
            self.guided.inc()
        elif wanted:
            self.fallback.inc()
        for total, count in (
            (self.drafted, step.drafted),
            (self.accepted, step.accepted),
            (self.expected, step.expected),
            (self.late, step.late),
            (self.unused, step.unused),
            (self.generation_tokens, len(step.tokens)),
        ):
            total.inc(count)
        for position in range(step.accepted):
            self.accepted_at.labels(position).inc()
        self.draft_length.observe(step.drafted)
        self.accepted_length.observe(step.accepted)
        if not first:
            tokens, seconds = self.speed[step.drafted > 0]
            tokens.inc(len(step.tokens))
            seconds.inc(step.seconds)
        self.verifier_trip.set(step.verifier_round_trip)
        self.drafter_trip.set(step.drafter_round_trip)
