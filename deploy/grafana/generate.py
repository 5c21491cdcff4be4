"""Write the Grafana dashboards: `python deploy/grafana/generate.py`, or `--check` that they are up
to date.

Each panel is a title, a unit and queries, by the names of docs/metrics.md and of the recording
rules in deploy/prometheus/rules.yml.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 2, 8  # of panels; Grafana's grid has 24 columns


@dataclass(frozen=True)
class Panel:
    """One graph: queries, each with the legend of its lines."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""

    def json(self, number: int) -> dict[str, Any]:
        """As Grafana stores it."""
        width = 24 // COLUMNS
        x, y = number % COLUMNS * width, number // COLUMNS * HEIGHT
        return {
            "id": number + 1,
            "type": "timeseries",
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "gridPos": {"h": HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
            "targets": [
                {"refId": chr(65 + n), "expr": query, "legendFormat": legend, "datasource": SOURCE}
                for n, (query, legend) in enumerate(self.queries.items())
            ],
        }


def rate(name: str, *by: str) -> str:
    """Per second, over all processes."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate(tandem_{name}[1m]))"


def quantile(name: str, part: float, *by: str) -> str:
    """A quantile of a histogram, over all processes."""
    return f"histogram_quantile({part}, {rate(f'{name}_bucket', 'le', *by)})"


def quantiles(title: str, name: str) -> Panel:
    """Median and 95th percentile of a duration."""
    both = {quantile(name, 0.5): "median", quantile(name, 0.95): "95 %"}
    return Panel(title, "s", both)


def both(title: str, unit: str, verb: str, name: str, text: str = "") -> Panel:
    """The same of verifiers and drafters: their 95th percentile."""
    owners = {"verify": "verifier", "draft": "drafter"}
    queries = {quantile(f"{each}_{name}", 0.95): owner for each, owner in owners.items()}
    return Panel(f"{title}, {verb}", unit, queries, text)


REPLICAS = 'tandem_replicas{state="serving"}'
DASHBOARDS = {
    "overview": (
        Panel("Tokens per second", "short", {rate("generation_tokens_total"): "generated"}),
        Panel(
            "Does speculation pay?",
            "short",
            {"tandem:goodput_ratio": "goodput with drafts / plain"},
            "Above 1: steps with drafts yield more tokens per second than steps without.",
        ),
        Panel("Requests by status", "reqps", {"tandem:requests:rate1m": "{{code}}"}),
        Panel(
            "Requests now",
            "short",
            {
                "sum(tandem_num_requests_running)": "running",
                "sum(tandem_num_requests_waiting)": "waiting",
            },
        ),
        quantiles("Time to first token", "time_to_first_token_seconds"),
        quantiles("Time between streamed outputs", "inter_token_latency_seconds"),
        Panel("Replicas that serve", "short", {f"max by (role) ({REPLICAS})": "{{role}}"}),
        Panel("Errors", "percentunit", {"tandem:error_ratio": "of all requests"}),
    ),
    "speculation": (
        Panel("Acceptance rate", "percentunit", {"tandem:acceptance_rate": "of draft tokens"}),
        Panel("Mean acceptance length", "short", {"tandem:mean_acceptance_length": "tokens"}),
        Panel(
            "Acceptance by position",
            "percentunit",
            {'tandem:acceptance_rate:position{position=~"[0-7]"}': "{{position}}"},
        ),
        Panel(
            "Tokens per second of a request",
            "short",
            {
                'tandem:goodput_tokens_per_second{guesses="yes"}': "steps with a draft",
                'tandem:goodput_tokens_per_second{guesses="no"}': "plain steps",
            },
        ),
        Panel(
            "Steps without a draft", "percentunit", {"tandem:fallback_ratio:reason": "{{reason}}"}
        ),
        Panel(
            "Draft tokens",
            "short",
            {
                rate("spec_decode_num_draft_tokens_total"): "verified",
                rate("spec_decode_num_accepted_tokens_total"): "accepted",
                rate("spec_decode_num_expected_tokens_total"): "expected to be accepted",
                rate("spec_decode_num_late_tokens_total"): "late",
                rate("spec_decode_num_unused_tokens_total"): "never verified",
            },
        ),
        Panel("Draft tokens of a step", "short", {quantile("draft_length", 0.5): "median"}),
        Panel("Accepted tokens of a step", "short", {quantile("accepted_length", 0.95): "95 %"}),
    ),
    "services": (
        both("Forward pass", "s", "95 %", "forward_seconds"),
        both("Between two passes", "s", "95 %", "host_seconds"),
        both("Sessions in a pass", "short", "95 %", "batch_sessions"),
        both("Tokens in a pass", "short", "95 %", "batch_tokens"),
        Panel(
            "Idle",
            "percentunit",
            {"tandem:verifier_idle_ratio": "verifier", "tandem:drafter_idle_ratio": "drafter"},
        ),
        Panel(
            "Memory for keys and values",
            "percentunit",
            {"tandem_kv_cache_usage_perc": "{{job}} {{instance}}"},
        ),
        Panel("Open sessions", "short", {"tandem_sessions": "{{job}} {{instance}}"}),
        Panel(
            "Sessions reclaimed", "short", {rate("session_evictions_total", "reason"): "{{reason}}"}
        ),
        both("Waiting for the model", "s", "95 %", "queue_seconds"),
        Panel(
            "Predicted pass times are off by",
            "percentunit",
            {
                "tandem_verify_cost_error_ratio": "verifier {{instance}}",
                "tandem_draft_cost_error_ratio": "drafter {{instance}}",
            },
        ),
    ),
    "network": (
        Panel(
            "Round trip of round workers",
            "s",
            {"max by (service) (tandem_service_round_trip_seconds)": "{{service}}"},
        ),
        Panel(
            "Round trip by replica",
            "s",
            {"max by (role, replica) (tandem_replica_round_trip_seconds)": "{{role}} {{replica}}"},
        ),
        Panel("Bytes per second", "Bps", {"tandem:wire_bytes:rate1m": "{{service}} {{direction}}"}),
        Panel(
            "Bytes per token", "bytes", {"tandem:wire_bytes_per_token": "{{service}} {{direction}}"}
        ),
        Panel("Steps per second", "short", {rate("steps_total"): "steps"}),
        Panel(
            "Requests moved to another worker", "short", {rate("request_resumes_total"): "moved"}
        ),
        Panel("Calls per second", "reqps", {rate("rpc_total", "method"): "{{method}}"}),
        Panel(
            "Calls that failed",
            "reqps",
            {rate('rpc_total{code!~"OK|CANCELLED"}', "method", "code"): "{{method}} {{code}}"},
        ),
        Panel("Replicas that do not answer", "short", {"tandem:replicas_missing": "{{role}}"}),
        Panel("Registered drafters", "short", {"sum(tandem_registered_drafters)": "drafters"}),
    ),
    "requests": (
        Panel(
            "Requests now",
            "short",
            {
                "sum(tandem_num_requests_running)": "running",
                "sum(tandem_num_requests_waiting)": "waiting",
            },
        ),
        Panel("Refused", "percentunit", {"tandem:refused_ratio": "of all requests"}),
        Panel("Requests by status", "reqps", {"tandem:requests:rate1m": "{{code}}"}),
        Panel(
            "Finished requests",
            "reqps",
            {rate("request_success_total", "finished_reason"): "{{finished_reason}}"},
        ),
        quantiles("Waiting for a place", "request_queue_time_seconds"),
        quantiles("Arrival to last token", "e2e_request_latency_seconds"),
        quantiles("Reading the prompt", "request_prefill_time_seconds"),
        quantiles("Time per token of a request", "request_time_per_output_token_seconds"),
        Panel(
            "First tokens after more than a second",
            "percentunit",
            {
                "tandem:first_token_slow_ratio:1m": "1 minute",
                "tandem:first_token_slow_ratio:10m": "10 minutes",
            },
        ),
        Panel(
            "Tokens per second",
            "short",
            {
                rate("prompt_tokens_total"): "prompts",
                rate("generation_tokens_total"): "generated",
                rate("reused_tokens_total"): "found in a cache",
            },
        ),
        Panel("Prompt tokens", "short", {quantile("request_prompt_tokens", 0.95): "95 %"}),
        Panel("Generated tokens", "short", {quantile("request_generation_tokens", 0.95): "95 %"}),
    ),
}


def dashboard(name: str, panels: tuple[Panel, ...]) -> str:
    """A dashboard's file."""
    variable = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    made = {
        "uid": f"tandem-{name}",
        "title": f"Tandem: {name}",
        "tags": ["tandem"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [variable | {"query": "prometheus"}]},
        "links": [
            {"type": "dashboards", "tags": ["tandem"], "title": "Tandem", "asDropdown": True}
        ],
        "panels": [panel.json(number) for number, panel in enumerate(panels)],
    }
    return json.dumps(made, indent=1) + "\n"


def main() -> int:
    """Write what is not up to date; with --check, fail if something is not."""
    outdated = []
    FOLDER.mkdir(exist_ok=True)
    for name, panels in DASHBOARDS.items():
        path, text = FOLDER / f"{name}.json", dashboard(name, panels)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and outdated:
        print(f"run deploy/grafana/generate.py: {', '.join(outdated)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
