"""In a cluster, Prometheus' operator and Grafana get the same rules and dashboards as in
Compose.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import ROOT, blocks
from tests.manifests import DEPLOY, KUBERAY, objects, program

RULES, DASHBOARDS = DEPLOY / "prometheus", DEPLOY / "grafana" / "dashboards"
WATCHED = ("cpu", KUBERAY)


def generated(folder: Path, *words: str) -> int:
    """Return the exit code of the generator of a folder's rules."""
    script = folder / "prometheus" / "generate.py"
    return subprocess.run([sys.executable, str(script), *words]).returncode


def groups(*names: str) -> list[dict[str, Any]]:
    """Return the groups of rules in some files."""
    texts = [(RULES / name).read_text(encoding="utf-8") for name in names]
    return [group for text in texts for group in yaml.safe_load(text)["groups"]]


@pytest.mark.parametrize("name", WATCHED)
def test_the_operator_gets_the_rules_and_alerts_of_the_files(name: str) -> None:
    (rule,) = objects(name, "PrometheusRule")
    assert rule["spec"]["groups"] == groups("rules.yml", "alerts.yml", "kubernetes.yml")
    assert generated(DEPLOY, "--check") == 0


@pytest.mark.parametrize("name", WATCHED)
def test_grafana_s_sidecar_finds_every_dashboard_by_its_label(name: str) -> None:
    found = {}
    for each in objects(name, "ConfigMap"):
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            found |= each["data"]
    files = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.glob("*.json")}
    assert found == files != {}


def test_monitors_and_rules_have_the_release_of_the_operator_which_an_overlay_sets(
    tmp_path: Path,
) -> None:
    """The overlay is the one that docs/deploying.md shows."""
    for name in (*WATCHED, "edge-drafter"):
        found = objects(name, "PodMonitor", "PrometheusRule")
        releases = {each["metadata"]["labels"]["release"] for each in found}
        assert releases == {"kube-prometheus-stack"}
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    page = blocks(ROOT / "docs" / "deploying.md")
    (shown,) = [each.text for each in page if "monitoring.coreos.com" in each.text]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(shown, encoding="utf-8")
    command = [program("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for each in yaml.safe_load_all(done.stdout):
        if each["apiVersion"].startswith("monitoring.coreos.com/"):
            assert each["metadata"]["labels"]["release"] == "prometheus"


def test_a_changed_rule_is_noticed_and_alerts_name_the_page_that_is_set(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    assert generated(folder, "--runbook", "https://wiki.example.org/docs/runbook.md") == 0
    assert generated(folder, "--check") == 0
    made = folder / "kustomize" / "base" / "monitoring" / "rules.yaml"
    for file in (made, folder / "prometheus" / "alerts.yml", folder / "prometheus" / "tests.yml"):
        text = file.read_text(encoding="utf-8")
        urls = text.count("runbook_url: ")
        assert urls == text.count("runbook_url: https://wiki.example.org/docs/runbook.md#") > 0
    with (folder / "prometheus" / "kubernetes.yml").open("a", encoding="utf-8") as file:
        file.write("      - {record: more, expr: up}\n")
    assert generated(folder, "--check") == 1
