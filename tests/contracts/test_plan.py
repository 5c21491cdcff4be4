"""What `tandem up` starts, depending on its options and on settings in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import models
from tandem.engine.config import OWN_COST, SHARED_COST, ModelServiceConfig
from tandem.orchestrator.cli.plan import NO_DRAFTS, Plan
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.errors import Unusable
from tandem.protos.service import cores
from tandem.protos.service.config import configured


def flags(plan: Plan) -> dict[str, list[str]]:
    """Return the flags that `tandem up` passes to each role."""
    return {role: words for role, _, words in plan.services()}


def test_up_chooses_only_what_nobody_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text("verifier: {threads: 3}")
    chosen = flags(Plan())
    assert f"--threads={max(1, cores.usable() - 1)}" in chosen["verifier"]
    assert "--threads=1" in chosen["drafter"]
    monkeypatch.setenv("TANDEM__DRAFTER__THREADS", "2")
    set_outside = flags(Plan(config=file))
    assert not [word for word in set_outside["verifier"] if word.startswith("--threads")]
    assert not [word for word in set_outside["drafter"] if word.startswith("--threads")]
    (port,) = [w for w in flags(Plan(http_port=8123))["orchestrator"] if "http-port" in w]
    assert port == "--http-port=8123"
    assert "--threads=5" in flags(Plan(threads=5, config=file))["verifier"]


def test_up_leaves_a_core_of_its_node_to_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {None: 3, 1: 2}
    monkeypatch.setattr("tandem.protos.service.cores.usable", lambda numa=None: counts[numa])
    assert "--threads=2" in flags(Plan())["verifier"]
    monkeypatch.setenv("TANDEM__VERIFIER__NUMA", "1")
    assert "--threads=1" in flags(Plan())["verifier"]


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, ""),
        ({"target": models.TARGET}, "--draft-method=suffix"),
        ({"target": models.TARGET, "draft": models.DRAFT}, ""),
        ({"target": models.TARGET, "draft": NO_DRAFTS}, "--draft-levels=0"),
        ({"draft": NO_DRAFTS}, "--draft-levels=0"),
    ],
)
def test_up_takes_no_draft_model_for_a_target_that_nobody_chose_for_it(
    given: dict[str, Path], method: str
) -> None:
    """Drafts then come from the text itself; if they are turned off, there are none."""
    words = flags(Plan(**given))
    has_drafter = not method
    assert ("drafter" in words) is has_drafter
    assert any(word.startswith("--drafter=") for word in words["orchestrator"]) is has_drafter
    assert [w for w in words["orchestrator"] if w.startswith("--draft-")] == [method] * bool(method)


def test_what_is_set_outside_wins_over_the_draft_method_that_up_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM__ORCHESTRATOR__DRAFT_METHOD", "tree")
    words = flags(Plan(models.TARGET))["orchestrator"]
    assert not [word for word in words if word.startswith("--draft-")]
    monkeypatch.setenv("TANDEM__DRAFTER__MODEL", "none")
    assert "--draft-levels=0" in flags(Plan(models.TARGET))["orchestrator"]


def test_a_drafter_that_shares_a_device_with_the_verifier_must_save_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = []
    for count in (1, 2, 4, 64):
        monkeypatch.setattr("tandem.protos.service.cores.usable", lambda count=count, **_: count)
        costs.append(ModelServiceConfig(model=models.DRAFT).draft_cost)
    assert costs == [SHARED_COST, SHARED_COST, OWN_COST, OWN_COST]
    monkeypatch.setenv("TANDEM__DRAFTER__DEVICE", "cuda:0")
    monkeypatch.setenv("TANDEM__VERIFIER__DEVICE", "cuda:1")
    assert not [word for word in flags(Plan())["drafter"] if "draft-cost" in word]
    monkeypatch.setenv("TANDEM__VERIFIER__DEVICE", "cuda:0")
    assert "--draft-cost=1.0" in flags(Plan())["drafter"]
    monkeypatch.setenv("TANDEM__VERIFIER__DEVICE", "cuda")
    assert "--draft-cost=1.0" in flags(Plan())["drafter"], "another name of the same"
    monkeypatch.setenv("TANDEM__DRAFTER__DRAFT_COST", "0")
    assert not [word for word in flags(Plan())["drafter"] if "draft-cost" in word]


def test_up_goes_by_the_models_hosts_and_ports_that_are_set_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM__VERIFIER__MODEL", str(models.DRAFT))
    monkeypatch.setenv("TANDEM__VERIFIER__PORT", "20999")
    monkeypatch.setenv("TANDEM__VERIFIER__HOST", "::1")
    words = flags(Plan(port=0, ray=False, cells=1))
    assert "--verifier=[::1]:20999" in words["orchestrator"]
    assert f"--tokenizer={models.DRAFT}" in words["orchestrator"]
    assert {"--no-ray", "--cells=1"} <= set(words["orchestrator"])
    threads = "--threads=" + str(max(1, cores.usable() - 1))
    assert words["verifier"] == [threads, "--log-level=warning", "--port=20999"]
    monkeypatch.setenv("TANDEM__VERIFIER__LOG_LEVEL", "info")
    assert "--log-level=warning" not in flags(Plan())["verifier"]


def test_up_waits_as_long_as_a_model_loads() -> None:
    """The launcher itself notices whether the verifier is still running."""
    waits = configured(OrchestratorConfig, "orchestrator", flags(Plan())["orchestrator"])
    alone = OrchestratorConfig.model_fields["start_seconds"].default
    assert waits.start_seconds > 100 * alone


def test_up_refuses_what_it_cannot_start_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unusable, match=r"models is not a model directory"):
        flags(Plan(target=models.EMBEDDED.parent))
    monkeypatch.setenv("TANDEM__VERFIER__PORT", "1")
    with pytest.raises(Unusable, match="did you mean TANDEM__VERIFIER__PORT"):
        flags(Plan())
