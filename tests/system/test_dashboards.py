"""A real Prometheus scrapes a loaded system of two verifiers and two drafters: every panel of every
dashboard and every recording rule has data.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tandem.verifier_service import service as verifier_service
from tests.documents import ROOT
from tests.served import Pair
from tests.system.test_same_text import ask
from tests.waiting import until

pytestmark = pytest.mark.long("a real Prometheus needs many seconds of a loaded system")

RULES = ROOT / "deploy" / "prometheus"
SERVES = b"Server is ready"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"


@dataclass(frozen=True)
class Watched:
    """A Prometheus, its targets, and the reasons why queries have no data yet."""

    url: str
    pages: dict[str, list[str]]

    async def values(self, query: str) -> list[float]:
        """Return the values of all series of a query that are numbers."""
        words = urllib.parse.urlencode({"query": query})
        answer = await asyncio.to_thread(read, f"{self.url}/api/v1/query?{words}")
        found = [float(each["value"][1]) for each in json.loads(answer)["data"]["result"]]
        return [value for value in found if not math.isnan(value)]


def read(url: str) -> str:
    with urllib.request.urlopen(url) as page:
        return str(page.read().decode())


def configuration() -> Any:
    """Write the shipped configuration with shorter intervals."""
    config = yaml.safe_load((RULES / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
    del config["alerting"]
    return config


def scraping(pages: dict[str, list[str]]) -> Any:
    """Write the shipped configuration for these pages."""
    config = configuration()
    for job in config["scrape_configs"]:
        job.pop("http_sd_configs", None)
        job["static_configs"] = [{"targets": pages[job["job_name"].removeprefix("tandem-")]}]
    return config


@asynccontextmanager
async def prometheus(folder: Path, config: Any) -> AsyncIterator[str]:
    """Run a Prometheus while the scope lasts; yields its URL once it is ready."""
    if not (program := shutil.which("prometheus")):
        pytest.skip("no prometheus here; `make tools` installs it")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = rpc.free_port("127.0.0.1")
    flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    process = await asyncio.create_subprocess_exec(
        *(program, *flags, f"--web.listen-address=127.0.0.1:{port}"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if SERVES in line:
            break
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def system(pair: Pair) -> AsyncIterator[tuple[Any, dict[str, list[str]]]]:
    """Run two verifiers and two drafters on loopback; yields a stub of the client API, and the
    metrics pages by role. The drafters draft always, also on a machine whose cores are busy.
    """
    kinds = {"verifier": (verifier_service, pair.target), "drafter": (drafter_service, pair.draft)}
    pages: dict[str, list[str]] = {}
    addresses: dict[str, list[str]] = {}
    async with AsyncExitStack() as scope:

        def page(role: str, registry: CollectorRegistry) -> None:
            served = scope.enter_context(pages_served("127.0.0.1", 0, Pages(registry)))
            pages.setdefault(role, []).append(served)

        for role, (module, folder) in (*kinds.items(), *kinds.items()):
            config, registry = ModelServiceConfig(model=folder, draft_cost=0.0), CollectorRegistry()
            address = await scope.enter_async_context(module.serving(config, registry))
            addresses.setdefault(role, []).append(address)
            page(role, registry)
        registry, given = CollectorRegistry(), {k: ",".join(v) for k, v in addresses.items()}
        front = OrchestratorConfig(tokenizer=pair.target, port=0, ray=False, **given)
        address = await scope.enter_async_context(server.serving(front, registry))
        page("orchestrator", registry)
        channel = await scope.enter_async_context(rpc.connect(address))
        yield orchestrator_pb2_grpc.OrchestratorServiceStub(channel), pages


async def load(stub: Any, seed: int) -> None:
    """Send requests of all kinds until cancelled."""
    while True:
        seed += 7
        request = ask("Once upon a time", temperature=seed % 2, seed=seed, tokens=60)
        if seed % 3 == 0:
            request.speculation.num_speculative_tokens = 0
        if seed % 10 == 0:
            request.stopping.max_new_tokens = 1 << 20  # refused
        with suppress(aio.AioRpcError):
            async for _ in stub.StreamGenerate(api.StreamGenerateRequest(request=request)):
                pass


@pytest.fixture(scope="module")
async def watched(embedded: Pair, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a Prometheus that scrapes a loaded system."""
    folder = tmp_path_factory.mktemp("prometheus")
    async with system(embedded) as (stub, pages), prometheus(folder, scraping(pages)) as url:
        loads = [asyncio.create_task(load(stub, seed)) for seed in range(3)]
        try:
            yield Watched(url, pages)
        finally:
            for each in loads:
                each.cancel()
            await asyncio.gather(*loads, return_exceptions=True)


async def have_data(watched: Watched, queries: Sequence[str]) -> None:
    """Wait until every query has some data."""
    for query in queries:
        await until(lambda query=query: watched.values(query), query)


async def test_every_panel_of_every_dashboard_has_data(watched: Watched) -> None:
    """The queries are those of Grafana when no namespace is chosen."""
    queries = [
        target["expr"].replace("$namespace", ".*")
        for file in sorted(DASHBOARDS.glob("*.json"))
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) > 60
    await have_data(watched, queries)


async def test_every_recording_rule_has_data(watched: Watched) -> None:
    groups = yaml.safe_load((RULES / "rules.yml").read_text(encoding="utf-8"))["groups"]
    names = [rule["record"] for group in groups for rule in group["rules"]]
    await have_data(watched, names)
    health = json.loads(await asyncio.to_thread(read, f"{watched.url}/api/v1/rules"))["data"]
    rules = [rule for group in health["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert len(rules) > len(names), "the alerts are evaluated too"


async def test_the_pages_are_as_prometheus_wants_them(watched: Watched) -> None:
    for address in [each for pages in watched.pages.values() for each in pages]:
        page = await asyncio.to_thread(read, f"http://{address}/metrics")
        check = ["promtool", "check", "metrics"]
        done = await asyncio.to_thread(
            subprocess.run, check, input=page, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert sum(not line.startswith("#") for line in page.splitlines()) <= 2000
