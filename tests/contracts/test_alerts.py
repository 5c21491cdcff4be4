"""Rules, alerts and dashboards are those of the metrics that there are, and of the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tandem.orchestrator.metrics import FrontMetrics
from tandem.protos.errors import (
    Busy,
    DeadlineExceeded,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
)
from tests.documents import ROOT, rows, section, spans

RULES, GRAFANA = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"
RUNBOOK = ROOT / "docs" / "runbook.md"
BY_CLIENTS = InvalidRequest, Busy, DeadlineExceeded, Unauthenticated, PermissionDenied
FOR_SECONDS = {f"{seconds}s": seconds for seconds in (0, 5, 10, 15, 30)}


def run(program: str, *words: str) -> None:
    """A program of Prometheus, if it is installed."""
    if not (path := shutil.which(program)):
        pytest.skip(f"no {program} here; `make tools` installs it")
    done = subprocess.run([path, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(name: str) -> Any:
    return yaml.safe_load((RULES / name).read_text(encoding="utf-8"))


@cache
def alerts() -> list[dict[str, Any]]:
    return [rule for group in loaded("alerts.yml")["groups"] for rule in group["rules"]]


@cache
def recorded() -> frozenset[str]:
    rules = (rule for group in loaded("rules.yml")["groups"] for rule in group["rules"])
    return frozenset(rule["record"] for rule in rules)


@cache
def documented() -> frozenset[str]:
    """Every name of a sample."""
    found = set()
    for cells in rows(section(ROOT / "docs" / "metrics.md", "Metrics of each service")):
        for name in (span.partition("{")[0] for cell in cells[:2] for span in spans(cell)):
            found |= {f"tandem_{name}{end}" for end in ("", "_bucket", "_sum", "_count")}
    return frozenset(found)


def test_every_alert_fires_with_its_fault_and_not_without_it() -> None:
    run("promtool", "test", "rules", str(RULES / "tests.yml"))
    names = [case["name"].partition(":")[0] for case in loaded("tests.yml")["tests"]]
    both = {f"{alert['alert']} {end}" for alert in alerts() for end in ("fires", "does not fire")}
    assert set(names) == both


def test_the_configurations_are_valid() -> None:
    run("promtool", "check", "config", str(RULES / "prometheus.yml"))
    run("amtool", "check-config", str(RULES / "alertmanager.yml"))


def test_each_status_that_a_client_can_cause_by_itself_has_a_series_that_is_no_error() -> None:
    registry, caused = CollectorRegistry(), (*(each.status for each in BY_CLIENTS), "CANCELLED")
    metrics = FrontMetrics(registry)
    for code in caused:
        metrics.ended(code)
    for code in caused:
        assert registry.get_sample_value("tandem_requests_total", {"code": code}) == 1, code
    rules = (rule for group in loaded("rules.yml")["groups"] for rule in group["rules"])
    (ratio,) = [rule["expr"] for rule in rules if rule["record"] == "tandem:error_ratio"]
    assert set(caused).isdisjoint(re.findall(r"[A-Z_]+", ratio))


def test_every_alert_has_a_paragraph_in_the_runbook() -> None:
    heads = re.findall(r"^## (\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert FOR_SECONDS[alert.get("for", "0s")] <= 30, "it has to fire within a minute"


@pytest.mark.parametrize(
    "path",
    [RUNBOOK, *sorted(RULES.glob("*.yml")), *sorted((GRAFANA / "dashboards").glob("*.json"))],
    ids=lambda path: path.name,
)
def test_queries_name_metrics_that_exist(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"tandem_[a-z0-9_]+", text)) <= documented()
    assert set(re.findall(r"tandem:\w+(?::\w+)?", text)) <= recorded()
