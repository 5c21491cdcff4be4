"""The front end's counters: those of a single request, and those for Prometheus.

Both kinds of counters are updated with every step, so a request's statistics always agree with the
Prometheus metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem.orchestrator.fleet.membership import Acceptance
from tandem.orchestrator.rounds.generation import Finish
from tandem.orchestrator.rounds.step import Fallback, Step
from tandem.protos.transport.calls import USUAL_CODES
from tandem.protos.types import MAX_LEVELS

GAP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
CODES = (*USUAL_CODES, "OTHER")
LENGTH_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


Counters: TypeAlias = Callable[..., Counter]
Gauges: TypeAlias = Callable[..., Gauge]
Histograms: TypeAlias = Callable[..., Histogram]


@dataclass(slots=True)
class SpeculationStats:
    """Speculation statistics of one request. `requested` tells whether drafts were requested."""

    requested: bool = True
    steps: int = 0
    steps_with_drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    late: int = 0
    unused: int = 0
    drafter_switches: int = 0
    verifier_switches: int = 0
    drafter: str = ""
    verifier_group: str = ""
    verifier_group_changes: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    @property
    def mean_acceptance_length(self) -> float:
        """The mean number of emitted tokens per step."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """The share of the verified draft tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def fallback_steps(self) -> int:
        """The number of steps without proposals although proposals were requested."""
        return self.steps - self.steps_with_drafts if self.requested else 0

    def add(self, step: Step) -> None:
        """Count one step."""
        self.steps += 1
        self.steps_with_drafts += step.commit.drafted > 0
        self.drafted += step.commit.drafted
        self.accepted += step.commit.accepted
        self.emitted += len(step.tokens)
        self.late += step.commit.late
        self.unused += step.commit.unused
        self.drafter_switches = max(self.drafter_switches, step.drafter_switches)
        self.drafter = step.drafter or self.drafter
        self.verified(step)
        missing = step.commit.accepted + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram += [0] * missing
        self.acceptance_histogram[step.commit.accepted] += 1

    def verified(self, step: Step) -> None:
        """Count the switches to another verifier that a step reports."""
        self.verifier_switches = max(self.verifier_switches, step.verifier_switches)
        if step.verifier_group:
            self.verifier_group_changes += self.verifier_group not in ("", step.verifier_group)
            self.verifier_group = step.verifier_group


def makers(registry: CollectorRegistry) -> tuple[Counters, Gauges, Histograms]:
    """Return functions that make counters, gauges and histograms with the prefix `tandem_`."""

    def counter(name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tandem_{name}", text, labels, registry=registry)

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tandem_{name}", text, labels, registry=registry)

    def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"tandem_{name}", text, labels, buckets=buckets, registry=registry)

    return counter, gauge, histogram


class FrontMetrics:
    """The front end's Prometheus metrics. A metric that has the same meaning in vLLM has the same
    name there, but with another prefix.
    """

    def __init__(self, registry: CollectorRegistry, drafters: Acceptance | None = None) -> None:
        counter, gauge, _ = makers(registry)
        self._drafters = drafters or Acceptance()
        self.steps = counter("steps", "Verifier steps; a batch counts once per session")
        self.steps_with_drafts = counter("spec_decode_num_drafts", "Steps with proposals")
        fallback = counter(
            "speculation_fallback",
            "Steps without proposals although proposals were requested",
            "reason",
        )
        self.fallback = {each: fallback.labels(each.name.lower()) for each in Fallback}
        self.drafted = counter("spec_decode_num_draft_tokens", "Draft tokens that were verified")
        self.accepted = counter(
            "spec_decode_num_accepted_tokens", "Draft tokens that were accepted"
        )
        self.expected = counter(
            "spec_decode_num_expected_tokens", "Draft tokens that the verifier expected to accept"
        )
        self.late = counter("spec_decode_num_late_tokens", "Draft tokens that arrived too late")
        self.unused = counter(
            "spec_decode_num_unused_tokens", "Draft tokens that were never verified"
        )
        tokens = counter(
            "step_tokens", "Tokens of all steps except the first step of each request", "draft"
        )
        seconds = counter(
            "step_seconds", "Seconds of all steps except the first step of each request", "draft"
        )
        self.speed = [(tokens.labels(each), seconds.labels(each)) for each in ("no", "yes")]
        trip = gauge("service_round_trip_seconds", "Smoothed round trip in seconds", "service")
        self.verifier_round_trip = trip.labels("verifier")
        self.drafter_round_trip = trip.labels("drafter")
        accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Steps that accepted the draft token at a position",
            "position",
        )
        self.accepted_at = [accepted_at.labels(each) for each in range(MAX_LEVELS)]
        self._requests(registry)
        self._latencies(registry)

    def _requests(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.generation_tokens = counter("generation_tokens", "Tokens emitted")
        finished = counter("request_success", "Finished requests", "finished_reason")
        self.finished = {each: finished.labels(each.name.lower()) for each in Finish}
        requests = counter("requests", "Requests that ended, by the status of the answer", "code")
        self._ended = {each: requests.labels(each) for each in CODES}
        self.running = gauge("num_requests_running", "Requests that are running")
        self.waiting = gauge("num_requests_waiting", "Requests that are waiting")
        self.draft_length = histogram("draft_length", "Draft tokens per step", LENGTH_BUCKETS)
        self.accepted_length = histogram(
            "accepted_length", "Accepted draft tokens per step", LENGTH_BUCKETS
        )
        self.prompt_length = histogram(
            "request_prompt_tokens", "Prompt tokens of finished requests", TOKEN_BUCKETS
        )
        self.answer_length = histogram(
            "request_generation_tokens", "Generated tokens of finished requests", TOKEN_BUCKETS
        )
        self.max_tokens = histogram(
            "request_params_max_tokens", "Token limits of finished requests", TOKEN_BUCKETS
        )

    def _latencies(self, registry: CollectorRegistry) -> None:
        _, _, histogram = makers(registry)

        def of_requests(name: str, text: str) -> Histogram:
            return histogram(name, text, REQUEST_BUCKETS)

        self.first_token = of_requests(
            "time_to_first_token_seconds", "Seconds from a request's arrival to its first token"
        )
        self.gap = histogram(
            "inter_token_latency_seconds", "Gap between streamed outputs", GAP_BUCKETS
        )
        self.per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean seconds per token of a request after its first token",
            GAP_BUCKETS,
        )
        self.total = of_requests(
            "e2e_request_latency_seconds", "Seconds from a request's arrival to its last token"
        )
        self.queue = of_requests("request_queue_time_seconds", "Time in the queue")
        self.prefill = of_requests(
            "request_prefill_time_seconds", "Seconds from leaving the queue to the first token"
        )
        self.decode = of_requests(
            "request_decode_time_seconds", "Seconds from the first token to the last token"
        )
        self.inference = of_requests(
            "request_inference_time_seconds", "Seconds from leaving the queue to the last token"
        )

    def ended(self, code: str) -> None:
        """Count a request that ended with the status `code`."""
        self._ended.get(code, self._ended["OTHER"]).inc()

    def add(self, step: Step, requested: bool, first: bool, drafter: str = "") -> None:
        """Count one step. If the drafter is known, also count its draft tokens in this step. The
        first step is excluded from the speed metrics, because it includes the time to process the
        prompt.
        """
        self.steps.inc()
        if step.commit.drafted:
            self.steps_with_drafts.inc()
        elif requested:
            self.fallback[step.fallback or Fallback.NO_DRAFT].inc()
        for total, count in (
            (self.drafted, step.commit.drafted),
            (self.accepted, step.commit.accepted),
            (self.expected, step.commit.expected),
            (self.late, step.commit.late),
            (self.unused, step.commit.unused),
            (self.generation_tokens, len(step.tokens)),
        ):
            total.inc(count)
        if drafter and step.commit.sent:
            self._drafters.add(drafter, step.commit.sent, step.commit.sent_accepted)
        for counter in self.accepted_at[: step.commit.accepted]:
            counter.inc()
        self.draft_length.observe(step.commit.drafted)
        self.accepted_length.observe(step.commit.accepted)
        if not first:
            tokens, seconds = self.speed[step.commit.drafted > 0]
            tokens.inc(len(step.tokens))
            seconds.inc(step.seconds)
        self.verifier_round_trip.set(step.verifier_round_trip)
        self.drafter_round_trip.set(step.drafter_round_trip)
