"""The panels of the Grafana dashboards. The queries of the panels use the metrics of
docs/metrics.md and the recording rules of deploy/prometheus/rules.yml.
"""

from __future__ import annotations

from panels import Panel, of_models, quantile, quantiles, rate

REPLICAS = 'tandem_replicas{state="serving"}'
REQUESTS_NOW = Panel(
    "Requests now",
    "short",
    {
        "sum by (namespace) (tandem_num_requests_running)": "running",
        "sum by (namespace) (tandem_num_requests_waiting)": "waiting",
    },
)
REQUESTS_BY_STATUS = Panel("Requests by status", "reqps", {"tandem:requests:rate1m": "{{code}}"})
DASHBOARDS = {
    "overview": (
        Panel("Tokens per second", "short", {rate("generation_tokens_total"): "generated"}),
        Panel(
            "Does speculation pay?",
            "short",
            {"tandem:goodput_ratio": "goodput with drafts / plain"},
            "Above 1: steps with drafts yield more tokens per second than steps without.",
        ),
        REQUESTS_BY_STATUS,
        REQUESTS_NOW,
        quantiles("Time to first token", "time_to_first_token_seconds"),
        quantiles("Time between streamed outputs", "inter_token_latency_seconds"),
        Panel(
            "Replicas that serve", "short", {f"max by (namespace, role) ({REPLICAS})": "{{role}}"}
        ),
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
            "Acceptance rate by drafter",
            "percentunit",
            {
                f"{rate('replica_accepted_tokens_total', 'replica')}"
                f" / {rate('replica_draft_tokens_total', 'replica')}": "{{replica}}"
            },
        ),
        Panel(
            "Tokens per second of a request",
            "short",
            {
                'tandem:goodput_tokens_per_second{draft="yes"}': "steps with a draft",
                'tandem:goodput_tokens_per_second{draft="no"}': "plain steps",
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
        of_models("Forward pass", "s", "forward_seconds"),
        of_models("Between two passes", "s", "host_seconds"),
        of_models("Sessions in a pass", "short", "batch_sessions"),
        of_models("Tokens in a pass", "short", "batch_tokens"),
        Panel(
            "Idle",
            "percentunit",
            {"tandem:verifier_idle_ratio": "verifier", "tandem:drafter_idle_ratio": "drafter"},
        ),
        Panel(
            "Memory for keys and values",
            "percentunit",
            {
                "tandem_kv_cache_usage_perc": "{{job}} {{instance}}, open sessions",
                "tandem_prefix_cache_usage_perc": "{{job}} {{instance}}, kept prefixes",
            },
        ),
        Panel("Open sessions", "short", {"tandem_sessions": "{{job}} {{instance}}"}),
        Panel(
            "Sessions reclaimed", "short", {rate("session_evictions_total", "reason"): "{{reason}}"}
        ),
        of_models("Waiting for the model", "s", "queue_seconds"),
        Panel(
            "Relative error of predicted pass times",
            "percentunit",
            {
                "tandem_verify_cost_error_ratio": "verifier {{instance}}",
                "tandem_draft_cost_error_ratio": "drafter {{instance}}",
            },
        ),
    ),
    "network": (
        Panel(
            "Round trip to the services",
            "s",
            {"max by (namespace, service) (tandem_service_round_trip_seconds)": "{{service}}"},
        ),
        Panel(
            "Round trip by replica",
            "s",
            {
                "max by (namespace, role, replica) (tandem_replica_round_trip_seconds)": (
                    "{{role}} {{replica}}"
                )
            },
        ),
        Panel("Bytes per second", "Bps", {"tandem:wire_bytes:rate1m": "{{service}} {{direction}}"}),
        Panel(
            "Bytes per token", "bytes", {"tandem:wire_bytes_per_token": "{{service}} {{direction}}"}
        ),
        Panel("Steps per second", "short", {rate("steps_total"): "steps"}),
        Panel("Calls per second", "reqps", {rate("rpc_total", "method"): "{{method}}"}),
        Panel(
            "Calls that failed",
            "reqps",
            {rate('rpc_total{code!~"OK|CANCELLED"}', "method", "code"): "{{method}} {{code}}"},
        ),
        Panel("Replicas that are missing", "short", {"tandem:replicas_missing": "{{role}}"}),
        Panel(
            "Registered drafters",
            "short",
            {"sum by (namespace) (tandem_registered_drafters)": "drafters"},
        ),
    ),
    "requests": (
        REQUESTS_NOW,
        Panel("Refused", "percentunit", {"tandem:refused_ratio": "of all requests"}),
        REQUESTS_BY_STATUS,
        Panel(
            "Finished requests",
            "reqps",
            {rate("request_success_total", "finished_reason"): "{{finished_reason}}"},
        ),
        quantiles("Waiting for a request slot", "request_queue_time_seconds"),
        quantiles("Arrival to last token", "e2e_request_latency_seconds"),
        quantiles("Prefill of the prompt", "request_prefill_time_seconds"),
        quantiles("Time per token of a request", "request_time_per_output_token_seconds"),
        Panel(
            "Share of first tokens later than a second",
            "percentunit",
            {
                "tandem:first_token_slow_ratio:5m": "5 minutes",
                "tandem:first_token_slow_ratio:1h": "an hour",
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
