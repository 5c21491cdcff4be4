"""A real Prometheus, configured for one machine, finds the metrics of every cell of a real `tandem
up`, also of cells that replace others.
"""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.parse
from pathlib import Path

import psutil
import pytest

from tandem.protos.errors import Unusable
from tandem.protos.transport import rpc
from tests.running_up import Served, running_up
from tests.system.test_dashboards import configuration, prometheus, read
from tests.waiting import until

pytest.importorskip("ray.serve", reason="the extra [cells] is not installed")
pytestmark = pytest.mark.long("starts a private Ray with two cells, and Prometheus")

HOST = "127.0.0.1"
PORTS = {"verifier": "9001", "drafter": "9002", "orchestrator": "9003"}  # in prometheus.yml


def free_ports() -> dict[str, int]:
    """Return a free port for each service, with a free neighbour for that of the first cell."""
    while True:
        found = {role: rpc.free_port(HOST) for role in PORTS}
        try:
            rpc.free_port(HOST, found["orchestrator"] + 1)
            return found
        except Unusable:
            continue


def listening(up: Served, port: int) -> set[int]:
    """Return the processes of a Tandem that listen on a port."""
    found = psutil.net_connections("tcp")
    ours = {child.pid for child in psutil.Process(up.process.pid).children(recursive=True)}
    those = (each for each in found if each.status == psutil.CONN_LISTEN)
    return {each.pid or 0 for each in those if each.laddr.port == port and each.pid in ours}


async def up_targets(url: str) -> dict[str, str]:
    """Return the metrics pages that Prometheus has read, with their jobs."""
    words = urllib.parse.urlencode({"query": "up == 1"})
    found = json.loads(await asyncio.to_thread(read, f"{url}/api/v1/query?{words}"))
    series = (each["metric"] for each in found["data"]["result"])
    return {each["instance"]: each["job"] for each in series}


async def test_prometheus_reads_every_cell_of_those_that_share_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports, config = free_ports(), configuration()
    for role, port in ports.items():
        monkeypatch.setenv(f"TANDEM__{role.upper()}__METRICS_PORT", str(port))
    text = json.dumps(config["scrape_configs"])
    for role, port in PORTS.items():
        text = text.replace(f"{HOST}:{port}", f"{HOST}:{ports[role]}")
    config["scrape_configs"] = json.loads(text)
    wanted = {f"{HOST}:{port}": f"tandem-{role}" for role, port in ports.items()}
    second = f"{HOST}:{ports['orchestrator'] + 1}"
    wanted[second] = "tandem-orchestrator"

    with running_up("--cells", "2", "--share-ports") as up:
        printed = [line.split() for line in up.printed.splitlines()]
        assert {second in "".join(words) for words in printed if words[:2] == ["serving", "cell"]}
        port = int(up.address.rpartition(":")[2])
        cells = listening(up, port)
        assert len(cells) == 2, "both listen at the same port"
        for command in (["status"], ["generate", "--max-new-tokens=5", "Once a target"]):
            done = up.run(*command)
            assert done.returncode == 0, done.stderr
        async with prometheus(tmp_path, config) as url:

            async def all_are_up() -> bool:
                return await up_targets(url) == wanted

            await until(all_are_up, "every page is read")
            (lost,) = listening(up, ports["orchestrator"])
            psutil.Process(lost).send_signal(signal.SIGKILL)
            await until(lambda: len(listening(up, port) - {lost}) == 2, "another cell listens")
            assert listening(up, ports["orchestrator"]) - {lost}, "at the ports of the lost one"
            await until(all_are_up, "every page is read again")
