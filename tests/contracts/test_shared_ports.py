"""Cells that share their ports: several servers listen on one port, and each has its own pages."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from starlette.applications import Starlette

from tandem import models
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.http import server as http_server
from tandem.protos.errors import Unusable
from tandem.protos.service.config import configured
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tests.waiting import LIMIT

HOST = "127.0.0.1"
OWN = [("grpc.use_local_subchannel_pool", 1)]  # gives each channel its own connection


async def test_servers_listen_at_one_port_if_all_of_them_say_so() -> None:
    port = rpc.free_port(HOST)
    async with AsyncExitStack() as scope:
        for _ in range(2):
            address = await scope.enter_async_context(rpc.serving(HOST, port, (), shared=True))
            app = http_server.serving(Starlette(), HOST, port + 1, shared=True)
            assert await scope.enter_async_context(app) == f"http://{HOST}:{port + 1}"
        for _ in range(8):
            channel = await scope.enter_async_context(aio.insecure_channel(address, OWN))
            assert await is_serving(channel, "", LIMIT)
        with pytest.raises(Unusable, match=f"port {port} on {HOST} cannot be opened"):
            await scope.enter_async_context(rpc.serving(HOST, port, ()))
        with pytest.raises(Unusable, match=f"port {port + 1} on {HOST} cannot be opened"):
            await scope.enter_async_context(http_server.serving(Starlette(), HOST, port + 1))


async def test_a_port_of_somebody_else_is_not_shared() -> None:
    async with rpc.serving(HOST, rpc.free_port(HOST), ()) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(Unusable, match=f"port {port} on {HOST} cannot be opened"):
            async with rpc.serving(HOST, port, (), shared=True):
                pass


def settings(*flags: str) -> OrchestratorConfig:
    needed = ["--verifier=v:1", f"--tokenizer={models.TARGET}", "--share-ports"]
    return configured(OrchestratorConfig, "orchestrator", [*needed, *flags])


def test_a_port_that_is_shared_is_known_before_cells_start() -> None:
    assert settings("--port=0").share_ports, "a private Ray gives all of its cells one"
    for flags in (["--no-ray", "--port=0"], ["--ray-address=a:1", "--http-port=0"]):
        with pytest.raises(Unusable, match="share_ports needs ports that are set, not 0"):
            settings(*flags)


def test_drafters_do_not_register_at_a_port_behind_which_there_are_several_cells(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unusable, match="registration_token cannot be used with share_ports"):
        settings("--registration-token=a-token-that-is-long-enough")
    clients = tmp_path / "clients.yaml"
    clients.write_text("{}")
    unused: Any = None
    config = settings(f"--clients={clients}")
    assert server.registration(config, unused, unused, unused) == ()
