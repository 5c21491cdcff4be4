"""Run Prometheus and Alertmanager with the configuration in `deploy/prometheus`, and a webhook that
receives the alerts.

Only the addresses in the configuration files are replaced. All intervals and alert thresholds have
the values that the project ships.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tandem.benchmarks.peers.checkout import HERE
from tandem.protos.errors import Unusable
from tandem.protos.transport import rpc

FILES, HOST = HERE / "deploy" / "prometheus", "127.0.0.1"
POLL_SECONDS = 0.2  # seconds between two checks of the firing alerts


@dataclass(slots=True)
class Webhook:
    """A webhook that records which alerts are firing, and when each of them was reported."""

    firing: dict[str, float] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)

    def receive(self, alerts: Iterable[Mapping[str, object]]) -> None:
        """Record the alerts that Alertmanager posts."""
        for alert in alerts:
            labels = alert["labels"]
            assert isinstance(labels, dict)
            name = str(labels["alertname"])
            if alert["status"] == "firing":
                self.firing.setdefault(name, time.monotonic())
                self.ever.add(name)
            else:
                self.firing.pop(name, None)

    async def until(self, name: str, seconds: float) -> bool:
        """Wait at most `seconds` until an alert fires, and return whether it fires."""
        until = time.monotonic() + seconds
        while name not in self.firing and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        return name in self.firing

    def listen(self) -> ThreadingHTTPServer:
        """Start an HTTP server for the webhook, on a free port."""
        receive = self.receive

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receive(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer((HOST, 0), Receiver)
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        return server


@asynccontextmanager
async def watching(folder: Path, pages: Mapping[str, Sequence[str]]) -> AsyncIterator[Webhook]:
    """Run Prometheus, Alertmanager and a webhook for the duration of the context. `pages` has the
    addresses that Prometheus scrapes for metrics, by role. Raises Unusable.
    """
    webhook = Webhook()
    server = webhook.listen()
    manager, monitor = f"{HOST}:{rpc.free_port(HOST)}", f"{HOST}:{rpc.free_port(HOST)}"
    config = yaml.safe_load((FILES / "prometheus.yml").read_text(encoding="utf-8"))
    config["rule_files"] = [str(FILES / name) for name in config["rule_files"]]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [manager]
    for job in config["scrape_configs"]:
        role = job["job_name"].removeprefix("tandem-")
        job["static_configs"] = [{"targets": list(pages[role])}]
    routes = yaml.safe_load((FILES / "alertmanager.yml").read_text(encoding="utf-8"))
    hook = routes["receivers"][0]["webhook_configs"][0]
    hook["url"] = f"http://{HOST}:{server.server_port}/alerts"
    for name, content in (("prometheus.yml", config), ("alertmanager.yml", routes)):
        (folder / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    async with AsyncExitStack() as scope:
        scope.callback(server.server_close)
        scope.callback(server.shutdown)
        await scope.enter_async_context(
            program(
                "prometheus-alertmanager",
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alerts'}",
                f"--web.listen-address={manager}",
                "--cluster.listen-address=",
            )
        )
        await scope.enter_async_context(
            program(
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={monitor}",
            )
        )
        yield webhook


@asynccontextmanager
async def program(name: str, *flags: str) -> AsyncIterator[None]:
    """Run a program for the duration of the context. Raises Unusable if the program is not
    installed.
    """
    if not (path := shutil.which(name)):
        raise Unusable(f"{name} is not installed; `make tools` installs it")
    process = await asyncio.create_subprocess_exec(path, *flags, stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
