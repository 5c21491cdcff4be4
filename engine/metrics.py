"""The Prometheus metrics of a model service: steps, batches, queues and sessions.

Quantities whose rate matters are histograms or counters; gauges are computed when Prometheus
scrapes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.engine.cache.sessions import Sessions
from tandem.engine.schedule.progress import StepReport

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
OWNERS = {"verify": "verifier", "draft": "drafter"}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class ModelMetrics:
    """Metrics of one model service; `verb` is the service's task: verify or draft."""

    def __init__(self, verb: str, exact: bool, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tandem_{verb}_{name}", text, buckets=buckets, registry=registry)

        self._forward = histogram(
            "forward_seconds", "Seconds of one forward pass over a batch", SECONDS
        )
        self._queue = histogram(
            "queue_seconds", "Seconds that a call waits in the queue before it starts", SECONDS
        )
        self._sessions = histogram("batch_sessions", "Number of sessions in a forward pass", COUNTS)
        self._tokens = histogram("batch_tokens", "Number of tokens in a forward pass", COUNTS)
        self._host = histogram("host_seconds", "Seconds between two forward passes", SECONDS)
        self._error = Gauge(
            f"tandem_{verb}_cost_error_ratio",
            "Smoothed relative error of predicted step times",
            registry=registry,
        )

        Gauge(
            f"tandem_{verb}_exact",
            "1 if logits are batch-invariant, bit for bit, else 0",
            registry=registry,
        ).set(exact)
        self._idle = IdleTime(OWNERS[verb], time.perf_counter)
        registry.register(self._idle)

    def observe(self, report: StepReport) -> None:
        """Record the metrics of one forward pass; the model thread calls this."""
        self._forward.observe(report.seconds)
        self._sessions.observe(report.sessions)
        self._tokens.observe(report.tokens)
        self._error.set(report.cost_error)
        self._idle.busy += report.seconds + (report.host_seconds or 0.0)
        if report.host_seconds is not None:
            self._host.observe(report.host_seconds)
        for seconds in report.queue_seconds:
            self._queue.observe(seconds)


class IdleTime(Collector):
    """Counts the seconds in which the model thread had no work. All time counts as idle, except for
    forward passes and for the host's work between two passes. Idle time includes a running pass
    until that pass ends, so the newest value may be slightly too high. Reported values never
    decrease.
    """

    def __init__(self, owner: str, clock: Callable[[], float]) -> None:
        self.busy = 0.0
        self._name = owner
        self._clock = clock
        self._began = clock()
        self._idle = 0.0

    def collect(self) -> list[Metric]:
        """Return the idle seconds; the exporter calls this at every scrape."""
        self._idle = max(self._idle, self._clock() - self._began - self.busy)
        text = "Seconds in which the model had no work"
        return [CounterMetricFamily(f"tandem_{self._name}_idle_seconds", text, self._idle)]


class SessionCollector(Collector):
    """Exports the metrics of sessions and cache, which are computed at every scrape."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> list[Metric]:
        """Return the metrics of sessions and cache; the exporter calls this at every scrape."""
        counts = self._sessions.counts
        misses = CounterMetricFamily(
            "tandem_session_misses",
            "Calls that relied on tokens that were not cached, and had to send all tokens again",
            labels=["reason"],
        )
        misses.add_metric(["not_cached"], counts.misses)
        evictions = CounterMetricFamily(
            "tandem_session_evictions", "Sessions reclaimed", labels=["reason"]
        )
        evictions.add_metric(["idle"], counts.expired)
        evictions.add_metric(["memory"], counts.evicted)
        stale = CounterMetricFamily(
            "tandem_stale_turns",
            "Calls refused because a newer call of the same session was already served",
        )
        stale.add_metric([], counts.stale)
        reused = CounterMetricFamily("tandem_reused_tokens", "Prompt tokens found in the cache")
        reused.add_metric([], counts.reused_tokens)
        sessions = GaugeMetricFamily("tandem_sessions", "Open sessions", len(self._sessions))
        usage = GaugeMetricFamily(
            "tandem_kv_cache_usage_perc",
            "Fraction of the memory for keys and values that sessions use, 0 to 1",
            self._sessions.usage,
        )
        prefixes = GaugeMetricFamily(
            "tandem_prefix_cache_usage_perc",
            "Fraction of the KV memory with cached prefixes that no open session uses, 0 to 1",
            self._sessions.prefix_usage,
        )
        return [misses, evictions, stale, reused, sessions, usage, prefixes]
