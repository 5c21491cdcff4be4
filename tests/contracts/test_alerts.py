"""Rules, alerts and dashboards use only metrics that exist, and the runbook describes every
alert.
"""

from __future__ import annotations

import json
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
# durations before an alert fires: not at the first evaluation, but within a minute of the fault
QUICK = {"10s", "15s", "30s"}
AGGREGATION = re.compile(r"\b(sum|avg|min|max|count|group|topk|bottomk|quantile)\b(.{0,60})", re.S)
MATCHING = re.compile(r"\bon ?\(([^)]*)\)")
RUNBOOK_URL = re.compile(r"(https://[\w./-]+/docs/runbook\.md)#(\w+)")


def run(program: str, *words: str) -> None:
    """Run a program of Prometheus, if it is installed."""
    if not (path := shutil.which(program)):
        pytest.skip(f"no {program} here; `make tools` installs it")
    done = subprocess.run([path, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(name: str) -> Any:
    return yaml.safe_load((RULES / name).read_text(encoding="utf-8"))


@cache
def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file."""
    return [rule for group in loaded(name)["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return rules("alerts.yml") + rules("kubernetes.yml")


@cache
def recorded() -> frozenset[str]:
    return frozenset(rule["record"] for rule in rules("rules.yml"))


@cache
def documented() -> frozenset[str]:
    """Return the names of all documented samples."""
    found = set()
    for cells in rows(section(ROOT / "docs" / "metrics.md", "Metrics of each service")):
        for name in (span.partition("{")[0] for cell in cells[:2] for span in spans(cell)):
            found |= {f"tandem_{name}{end}" for end in ("", "_bucket", "_sum", "_count")}
    return frozenset(found)


@pytest.mark.long("computes every rule over days of series")
def test_every_alert_fires_with_its_fault_and_not_without_it() -> None:
    run("promtool", "test", "rules", str(RULES / "tests.yml"))
    names = [case["name"].partition(":")[0] for case in loaded("tests.yml")["tests"]]
    both = {f"{alert['alert']} {end}" for alert in alerts() for end in ("fires", "does not fire")}
    assert set(names) == both | {"two namespaces"}


def test_every_rule_keeps_the_label_that_tells_deployments_apart() -> None:
    """Staging and production that share a Prometheus never share a figure."""
    for rule in rules("rules.yml") + alerts():
        for operator, rest in AGGREGATION.findall(rule["expr"]):
            assert re.match(r" by \(namespace\b", rest), f"{operator}{rest}"
        for labels in MATCHING.findall(rule["expr"]):
            assert "namespace" in labels.split(", "), rule["expr"]
        assert not re.search(r"\bwithout\b", rule["expr"])
    routes = loaded("alertmanager.yml")["route"]
    assert routes["group_by"] == ["alertname", "namespace"]


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
    found = {rule["record"]: rule["expr"] for rule in rules("rules.yml")}
    ratio = found["tandem:errors:increase5m"]
    assert set(caused).isdisjoint(re.findall(r"[A-Z_]+", ratio))


def test_every_alert_has_a_paragraph_in_the_runbook() -> None:
    heads = re.findall(r"^## (\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == [alert["alert"] for alert in alerts()]
    pages = set()
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        link = RUNBOOK_URL.fullmatch(alert["annotations"]["runbook_url"])
        assert link and link[2] == alert["alert"].lower()
        pages.add(link[1])
    assert len(pages) == 1
    assert {alert["for"] for alert in rules("alerts.yml")} <= QUICK


@pytest.mark.parametrize(
    "path",
    [RUNBOOK, *sorted(RULES.glob("*.yml")), *sorted((GRAFANA / "dashboards").glob("*.json"))],
    ids=lambda path: path.name,
)
def test_queries_name_metrics_that_exist(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    adapted = {rule["name"]["as"] for rule in loaded("adapter.yml")["rules"]}
    assert set(re.findall(r"tandem_[a-z0-9_]+", text)) <= documented() | adapted
    assert set(re.findall(r"tandem:\w+(?::\w+)?", text)) <= recorded()


@pytest.mark.parametrize(
    "path", sorted((GRAFANA / "dashboards").glob("*.json")), ids=lambda path: path.stem
)
def test_dashboards_show_the_deployments_that_are_chosen_and_add_up_none(path: Any) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["namespace"]["query"] == "label_values(tandem_build_info, namespace)"
    for target in [each for panel in board["panels"] for each in panel["targets"]]:
        query = target["expr"]
        metrics = re.findall(r"\btandem[_:][a-z0-9_:]+(.{0,60})", query)
        assert metrics and all('namespace=~"$namespace"}' in rest for rest in metrics), query
        for operator, rest in AGGREGATION.findall(query):
            assert rest.startswith(" by (namespace"), f"{operator}{rest}"
        assert "{{namespace}}" in target["legendFormat"]
