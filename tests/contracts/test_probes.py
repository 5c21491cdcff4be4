"""What `/healthz` and `/readyz` answer to container probes, also without a certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.protos.service import command, probes
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.service.probes import ALIVE, READY, add_probes
from tests.certificates import made, settings, tls_of
from tests.waiting import LIMIT


def get(url: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Return the status and the body of a page."""
    try:
        with urlopen(url, timeout=LIMIT, context=context) as page:
            return page.status, page.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_a_service_is_ready_when_nothing_is_wrong_and_alive_in_any_case() -> None:
    pages, problems = Pages(CollectorRegistry()), ["no verifier serves", "it is stopping"]
    with pages_served("127.0.0.1", 0, pages) as address:

        async def asked(path: str) -> tuple[int, str]:
            return await asyncio.to_thread(get, f"http://{address}{path}")

        for path in (ALIVE, READY):
            assert (await asked(path))[0] == 404, "its port is not open yet"
        add_probes(pages, lambda: problems)
        assert await asked(READY) == (503, "no verifier serves; it is stopping\n")
        assert await asked(ALIVE) == (200, "ok\n")
        problems.clear()
        assert await asked(READY) == (200, "ok\n")


async def test_a_service_whose_event_loop_hangs_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ANSWER_SECONDS", 0.05)
    pages = Pages(CollectorRegistry())
    with pages_served("127.0.0.1", 0, pages) as address:
        add_probes(pages, lambda: ())
        for path in (ALIVE, READY):  # runs on the event loop itself, which waits for the answer
            assert get(f"http://{address}{path}") == (503, "the event loop does not answer\n")


def test_a_service_whose_event_loop_has_ended_is_neither() -> None:
    pages = Pages(CollectorRegistry())

    async def added() -> None:
        add_probes(pages, lambda: ())

    asyncio.run(added())
    with pages_served("127.0.0.1", 0, pages) as address:
        assert get(f"http://{address}{ALIVE}")[0] == get(f"http://{address}{READY}")[0] == 503


async def test_a_probe_needs_no_certificate_where_the_metrics_page_asks_for_them(
    tmp_path: Path,
) -> None:
    """The kubelet shows no certificate and checks none."""
    folder = made(tmp_path / "certs")
    files = settings(folder, "verifier")
    config = ModelServiceConfig(model=models.TARGET, metrics_tls=True, **files)
    pages = Pages(CollectorRegistry())
    kubelet = ssl._create_unverified_context()
    own = tls_of(folder, "client")
    prometheus = ssl.create_default_context(cafile=own.ca)
    assert own.cert and own.key
    prometheus.load_cert_chain(own.cert, own.key)
    other = made(tmp_path / "other")
    stranger = ssl._create_unverified_context()
    stranger.load_cert_chain(other / "client.pem", other / "client-key.pem")
    with command.served(config, pages) as url:
        add_probes(pages, lambda: ())

        async def asked(context: ssl.SSLContext, path: str) -> int:
            return (await asyncio.to_thread(get, f"{url}{path}", context))[0]

        url = url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        for path in (ALIVE, READY):
            assert await asked(kubelet, path) == await asked(prometheus, path) == 200
        for path in ("/metrics", "/", "/no-page"):
            assert await asked(kubelet, path) == 403
        assert await asked(prometheus, "/metrics") == 200
        with pytest.raises(OSError):
            await asked(stranger, ALIVE)
