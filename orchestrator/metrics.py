"""What the front end counts: for one request, and for Prometheus, in the same place.

Counters live in the front end because round workers come and go; a summary and the counters grow by
the same messages, so they always agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2

PHASE_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(slots=True)
class Tally:
    """The speculation figures of one request."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    fallback_rounds: int = 0
    histogram: list[int] = field(default_factory=list)

    def add(self, step: rounds_pb2.RunResponse) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.emitted += len(step.tokens)
        self.fallback_rounds += step.fallback
        self.histogram += [0] * (step.accepted + 1 - len(self.histogram))
        self.histogram[step.accepted] += 1

    def summary(self, rule: api.AcceptanceRule.ValueType) -> api.SpeculationSummary:
        """As the client sees it."""
        return api.SpeculationSummary(
            num_spec_steps=self.rounds,
            num_draft_tokens=self.drafted,
            num_accepted_draft_tokens=self.accepted,
            mean_acceptance_length=self.emitted / self.rounds if self.rounds else 0.0,
            draft_acceptance_rate=self.accepted / self.drafted if self.drafted else 0.0,
            acceptance_histogram=self.histogram,
            fallback_rounds=self.fallback_rounds,
            rule=rule or api.ACCEPTANCE_RULE_MATCH,
        )


class FrontMetrics:
    """The front end's Prometheus metrics; suffixes are vLLM's so that existing queries port."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tandem_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tandem_{name}", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tandem_{name}", text, registry=registry)

        self.rounds = counter("spec_decode_num_drafts", "Rounds")
        self.drafted = counter("spec_decode_num_draft_tokens", "Draft tokens verified")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens that stand")
        self.accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Rounds that accepted beyond a position",
            "position",
        )
        self.fallback = counter(
            "speculation_fallback", "Rounds without the draft they wanted", "reason"
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.generation_tokens = counter("generation_tokens", "Tokens emitted")
        self.finished = counter("request_success", "Finished requests", "finished_reason")
        self.resumes = counter("request_resumes", "Requests moved to another round worker")
        self.running = gauge("num_requests_running", "Requests in rounds")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for a place")
        self.draft_length = histogram("draft_length", "Draft tokens per round", LENGTHS)
        self.accepted_length = histogram(
            "accepted_length", "Accepted draft tokens per round", LENGTHS
        )
        self.phase = histogram(
            "round_duration_seconds", "Phases of a round", PHASE_SECONDS, "phase"
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "Arrival to first token", REQUEST_SECONDS
        )
        self.gap = histogram(
            "inter_token_latency_seconds", "Gap between streamed outputs", PHASE_SECONDS
        )
        self.per_token = histogram(
            "time_per_output_token_seconds", "Amortised, after the first", PHASE_SECONDS
        )
        self.total = histogram(
            "e2e_request_latency_seconds", "Arrival to last token", REQUEST_SECONDS
        )
        self.queue = histogram("request_queue_time_seconds", "Waiting for a place", REQUEST_SECONDS)

    def add(self, step: rounds_pb2.RunResponse) -> None:
        """Count one round."""
        self.rounds.inc()
        self.drafted.inc(step.drafted)
        self.accepted.inc(step.accepted)
        self.generation_tokens.inc(len(step.tokens))
        for position in range(step.accepted):
            self.accepted_at.labels(position).inc()
        if step.fallback:
            self.fallback.labels("drafter").inc()
        self.draft_length.observe(step.drafted)
        self.accepted_length.observe(step.accepted)
        self.phase.labels("propose").observe(step.timing.propose_seconds)
        self.phase.labels("verify").observe(step.timing.verify_seconds)
        self.phase.labels("advance").observe(step.timing.advance_seconds)
