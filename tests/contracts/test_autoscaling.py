"""Pods are scaled by metrics that the adapter derives from the metrics which pods export."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.config import OrchestratorConfig
from tests.manifests import DEPLOY, objects, program, workloads

RUNNING = OrchestratorConfig.model_fields["max_running"].default
SESSIONS = ModelServiceConfig.model_fields["max_sessions"].default
RENDERED = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": 'namespace="tandem",pod=~"a|b"'}
SERIES = {
    "tandem_verify_queue_seconds_sum": ("0+4x24", "0x24"),
    "tandem_verify_queue_seconds_count": ("0+5x24", "0x24"),
    "tandem_draft_queue_seconds_sum": ("0+1x24", "0x24"),
    "tandem_draft_queue_seconds_count": ("0+5x24", "7x24"),
    "tandem_kv_cache_usage_perc": ("0.2x22 0.8 0.2", "0x24"),
    "tandem_num_requests_running": ("32x24", "0x24"),
    "tandem_num_requests_waiting": ("3x24", "0x24"),
}
WANTED = {
    "tandem_verify_queue_seconds": (0.8, 0),
    "tandem_draft_queue_seconds": (0.2, 0),
    "tandem_kv_cache_usage_perc": (0.8, 0),
    "tandem_requests_in_places": (35, 0),
}


@cache
def adapter() -> dict[str, dict[str, Any]]:
    """Return the adapter's rules by the names of their metrics."""
    text = (DEPLOY / "prometheus" / "adapter.yml").read_text(encoding="utf-8")
    return {rule["name"]["as"]: rule for rule in yaml.safe_load(text)["rules"]}


def rendered(query: str) -> str:
    """Return the adapter's query to Prometheus when the cluster asks about two pods."""
    for template, text in RENDERED.items():
        query = query.replace(template, text)
    return query


@pytest.fixture
def scaled(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the objects of the overlay `cpu` with the component."""
    here = os.path.relpath(DEPLOY / "kustomize", tmp_path)
    made = {
        "resources": [f"{here}/overlays/cpu"],
        "components": [f"{here}/components/autoscaling"],
        "namespace": "tandem",
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    command = [program("kubectl"), "kustomize", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(done.stdout))


def scalers(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the autoscalers by the objects that they scale."""
    return {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]
        for each in made
        if each["kind"] == "HorizontalPodAutoscaler"
    }


def test_each_service_is_scaled_by_metrics_that_the_adapter_has(
    scaled: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = scalers(scaled)
    assert found.keys() == workloads("cpu").keys()
    asked = {each["pods"]["metric"]["name"] for spec in found.values() for each in spec["metrics"]}
    assert asked == adapter().keys()
    kept = {
        each["metadata"]["name"]: each["spec"].get("replicas")
        for each in scaled
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    assert kept == dict.fromkeys(found), "the autoscaler's number would be set back"
    before = objects("cpu", "Deployment", "StatefulSet")
    least = {each["metadata"]["name"]: each["spec"]["replicas"] for each in before}
    assert {name: spec["minReplicas"] for name, spec in found.items()} == least
    file = tmp_path / "scalers.yaml"
    file.write_text(
        yaml.safe_dump_all(each for each in scaled if "Autoscaler" in each["kind"]), "utf-8"
    )
    command = [program("kubernetes-validate"), "--strict", "--quiet", "--no-warn", file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_model_services_have_a_session_for_every_request_that_front_ends_decode(
    scaled: list[dict[str, Any]],
) -> None:
    found = scalers(scaled)
    front = found["orchestrator"]
    for each in ("verifier", "drafter"):
        assert front["maxReplicas"] * RUNNING <= found[each]["minReplicas"] * SESSIONS
    (metric,) = front["metrics"]
    assert float(metric["pods"]["target"]["averageValue"]) == 0.75 * RUNNING


def test_the_adapter_s_queries_have_a_number_for_each_pod(tmp_path: Path) -> None:
    """One of the two pods is idle; pods of other namespaces are not counted."""
    series = [
        {"series": f'{name}{{namespace="{space}",pod="{pod}"}}', "values": values}
        for name, both in SERIES.items()
        for space, pod, values in (
            ("tandem", "a", both[0]),
            ("tandem", "b", both[1]),
            ("other", "a", "0+99x24"),
        )
    ]
    checks = [
        {
            "expr": rendered(adapter()[name]["metricsQuery"]),
            "eval_time": "115s",
            "exp_samples": [
                {"labels": f'{{pod="{pod}"}}', "value": value}
                for pod, value in zip("ab", both, strict=True)
            ],
        }
        for name, both in WANTED.items()
    ]
    assert WANTED.keys() == adapter().keys()
    test = {"interval": "5s", "input_series": series, "promql_expr_test": checks}
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "5s", "tests": [test]}), "utf-8")
    command = [program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in adapter().values():
        name = rule["seriesQuery"].partition("{")[0]
        assert name in SERIES and name in rule["metricsQuery"]
