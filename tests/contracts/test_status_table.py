"""What `tandem status` prints."""

from __future__ import annotations

import pytest

from tandem.orchestrator.cli import client, terminal
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

LONG = "verifier-of-the-large-model.in-the-second-rack.of-the-cluster.example.com:7001"


class Orchestrator(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Reports a verifier that serves, or does not."""

    def __init__(self, serving: bool) -> None:
        self.serving = serving

    async def GetStatus(self, request: object, context: object) -> api.GetStatusResponse:
        """One model."""
        verifier = api.ReplicaStatus(address=LONG, serving=self.serving, exactness="exact")
        drafter = api.ReplicaStatus(address="[fe80::1]:7002", serving=False)
        model = api.ModelStatus(name="target", verifiers=[verifier], drafters=[drafter])
        return api.GetStatusResponse(version="1.2.3", models=[model])


@pytest.mark.parametrize("serving", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
async def test_the_exit_code_says_whether_requests_are_served(serving: bool, as_json: bool) -> None:
    """They are without a drafter."""
    async with rpc.serving("127.0.0.1", 0, Orchestrator(serving)) as address:
        assert await client.show_status(address, as_json) == (0 if serving else 1)


async def test_addresses_are_whole_and_the_version_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal.show_status(await Orchestrator(True).GetStatus(None, None))
    said = capsys.readouterr().out
    assert LONG in said.splitlines()[1] and "[fe80::1]:7002" in said
    assert said.endswith("target: 0 running, 0 waiting; tandem 1.2.3\n")


def test_progress_shows_addresses_of_ipv6_whole(capsys: pytest.CaptureFixture[str]) -> None:
    progress = terminal.StartProgress(terminal.console())
    fact = {"role": "verifier", "address": "[fe80::1]:7001", "metrics": "[fe80::1]:9001"}
    progress.report("serving", fact)
    progress.report("testing", {"role": "verifier", "model": "models/[fe]"})
    progress.ready("[fe80::1]:7002")
    said = capsys.readouterr().out
    for word in ("[fe80::1]:7001", "[fe80::1]:9001/metrics", "models/[fe]", "[fe80::1]:7002"):
        assert word in said
