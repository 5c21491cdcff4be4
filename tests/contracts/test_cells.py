"""What Ray Serve reads about cells: their number, their settings, and the file that ships."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.errors import Unusable
from tandem.protos.service.config import completed
from tandem.protos.service.pages import Pages
from tandem.protos.transport import rpc
from tests.manifests import DEPLOY, KUBERAY, objects, ray_pods

serve_config = pytest.importorskip("ray.serve.config")
serve_schema = pytest.importorskip("ray.serve.schema")
cells = pytest.importorskip("tandem.orchestrator.cells")

HOST, PAGES = "127.0.0.1", Pages(CollectorRegistry())


@pytest.mark.parametrize(
    ("filled", "wanted"), [({}, 0), ({"a": 0.7}, 1), ({"a": 0.8}, 2), ({"a": 1.2, "b": 1.1}, 4)]
)
def test_there_are_as_many_cells_as_fill_three_quarters_of_their_places(
    filled: dict[str, float], wanted: int
) -> None:
    names = serve_config.AutoscalingContext.__init__.__code__.co_varnames[1:18]
    nothing = dict.fromkeys(names) | {"total_num_requests": 0}
    known = nothing | {"aggregated_metrics": {"filled": filled}}
    assert cells.policy(serve_config.AutoscalingContext(**known))[0] == wanted
    assert cells.policy(serve_config.AutoscalingContext(**nothing))[0] == 0


async def test_no_cell_starts_on_a_ray_that_runs_anybody_s_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(cells, "get_node_ip_address", lambda: "10.0.0.1")
    with pytest.raises(Unusable, match="RAY_AUTH_MODE is not set"):
        await cells.Cell.__init__(SimpleNamespace(), {"verifier": "v:1"})


def test_arguments_are_settings() -> None:
    given = {"verifier": ["a:1", "dns:///v:1"], "tokenizer": models.TARGET, "port": 7}
    config = completed(OrchestratorConfig, "orchestrator", given)
    assert {name: getattr(config, name) for name in given} == given | {"verifier": "a:1,dns:///v:1"}
    with pytest.raises(Unusable, match="verfier: no such setting"):
        cells.app({"verfier": "a:1"})


def test_the_ports_of_a_cell_move_together_above_those_of_the_others() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        first = taken.getsockname()[1]
        ports = {"port": first, "http_port": first + 1, "certificate_port": first + 2}
        given = {"verifier": "a:1", "tokenizer": models.TARGET, "metrics_port": 0}
        config = completed(OrchestratorConfig, "orchestrator", given)
        with cells.on_free_ports(config.model_copy(update=ports), PAGES) as (moved, url):
            distances = {getattr(moved, name) - port for name, port in ports.items()}
            assert len(distances) == 1 and min(distances) > 0
            assert moved.metrics_port == 0 and not url.endswith(":0")


@pytest.mark.parametrize("shared", [False, True])
def test_cells_that_start_at_once_do_not_take_each_other_s_ports(shared: bool) -> None:
    """At that time no cell has opened its port of the client API yet."""
    given = {"verifier": "a:1", "tokenizer": models.TARGET, "share_ports": shared}
    ports = {"port": rpc.free_port(HOST), "metrics_port": rpc.free_port(HOST)}
    config = completed(OrchestratorConfig, "orchestrator", given | ports)
    with (
        cells.on_free_ports(config, PAGES) as (first, _),
        cells.on_free_ports(config, PAGES) as (second, _),
    ):
        assert first == config
        assert second.metrics_port > first.metrics_port
        assert (second.port > first.port) is not shared
        again = cells.on_free_ports(config, PAGES)
    with again as (third, _):
        assert third == config, "a cell that is lost is replaced at its ports"


@pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")
def test_the_file_that_ships_is_serve_s_and_the_one_of_the_manifest_for_kuberay() -> None:
    text = (DEPLOY / "kustomize" / "overlays" / KUBERAY / "cells.yaml").read_text(encoding="utf-8")
    (service,) = objects(KUBERAY, "RayService")
    assert service["spec"]["serveConfigV2"] == text
    content = yaml.safe_load(text)
    (application,) = serve_schema.ServeDeploySchema.model_validate(content).applications
    assert application.import_path == f"{cells.__name__}:{cells.app.__name__}"
    built = cells.app(application.args)
    (deployment,) = application.deployments
    assert deployment.name == built._bound_deployment.name
    policy = deployment.autoscaling_config["policy"]["policy_function"]
    assert policy == f"{cells.__name__}:{cells.policy.__name__}"
    drained = deployment.graceful_shutdown_timeout_s
    assert drained > OrchestratorConfig.model_fields["drain_seconds"].default
    grace = ray_pods()["ray-worker"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > drained, "pods stay as long as it takes to drain cells"
