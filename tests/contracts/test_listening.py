"""The settings for listening: beyond loopback a port is protected, or says explicitly that it is
not.
"""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import launcher
from tandem.orchestrator.cli import certificates
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.address import is_loopback
from tandem.protos.errors import Unusable
from tandem.protos.service.config import configured
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.tls import Tls, server_context
from tests.certificates import made, tls_of
from tests.waiting import LIMIT

NEEDED = {
    "verifier": [f"--model={models.TARGET}"],
    "drafter": [f"--model={models.DRAFT}"],
    "orchestrator": ["--verifier=v:1", f"--tokenizer={models.TARGET}"],
}
FILES = ["--tls-ca=ca.pem", "--tls-cert=cert.pem", "--tls-key=key.pem"]


def listening(role: str, *arguments: str) -> ModelServiceConfig | OrchestratorConfig:
    words = [*NEEDED[role], *arguments]
    if role == "orchestrator":
        return configured(OrchestratorConfig, role, words)
    return configured(ModelServiceConfig, role, words)


@pytest.mark.parametrize(
    ("role", "host"),
    [
        *(("verifier", host) for host in ("0.0.0.0", "::", "[::]", "10.0.0.1", "example.com", "")),
        *(("drafter", "0.0.0.0"), ("orchestrator", "0.0.0.0")),
    ],
)
def test_a_service_beyond_loopback_needs_tls_or_says_that_it_has_none(role: str, host: str) -> None:
    with pytest.raises(Unusable, match="beyond loopback, which needs tls_cert, tls_key and tls_ca"):
        listening(role, f"--host={host}")
    with pytest.raises(Unusable, match=r"metrics_host .* is beyond loopback"):
        listening(role, f"--metrics-host={host}")
    assert listening(role, f"--host={host}", f"--metrics-host={host}", "--insecure").tls is None
    found = listening(role, f"--host={host}", *FILES).tls
    assert found == Tls(Path("ca.pem"), Path("cert.pem"), Path("key.pem"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    assert listening("verifier", f"--host={host}").tls is None


@pytest.mark.parametrize("left_out", FILES)
def test_files_are_given_together_or_not_at_all(left_out: str) -> None:
    name = left_out.removeprefix("--").partition("=")[0].replace("-", "_")
    with pytest.raises(Unusable, match=f"{name} missing"):
        listening("verifier", *(each for each in FILES if each != left_out))
    with pytest.raises(Unusable, match="metrics_tls needs"):
        listening("verifier", "--metrics-tls")


def test_drafters_register_by_one_token_or_as_clients(tmp_path: Path) -> None:
    token = "--registration-token=a-secret-of-16-characters"
    with pytest.raises(Unusable, match="registration_token cannot be used with clients"):
        listening("orchestrator", token, f"--clients={tmp_path}")
    assert listening("orchestrator", token)


def asked(port: str, own: Tls, ca: Path) -> bytes:
    """Return the certificate that a metrics page shows at the first connection."""
    context = ssl.create_default_context(cafile=ca)
    if own.cert and own.key:
        context.load_cert_chain(own.cert, own.key)
    with (
        socket.create_connection(("127.0.0.1", int(port)), LIMIT) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        if not encrypted.recv(64).startswith(b"HTTP/1.0 200"):
            raise ConnectionAbortedError
        return encrypted.getpeercert(binary_form=True) or b""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "now")


@pytest.fixture
def page(folder: Path) -> Iterator[str]:
    """Return the port of a metrics page."""
    context, pages = server_context(tls_of(folder, "verifier")), Pages(CollectorRegistry())
    with pages_served("127.0.0.1", 0, pages, context) as address:
        yield address.rpartition(":")[2]


def test_a_metrics_page_asks_for_certificates_and_shows_its_newest(folder: Path, page: str) -> None:
    """A silent client keeps no other client from the page."""
    own = tls_of(folder, "client")
    with socket.create_connection(("127.0.0.1", int(page))):
        before = asked(page, own, own.ca)
    with pytest.raises(OSError):
        asked(page, Tls(own.ca), own.ca)
    with pytest.raises((OSError, HTTPException)):
        urlopen(f"http://127.0.0.1:{page}/metrics", timeout=LIMIT)
    certificates.make(folder, force=True)
    assert asked(page, own, own.ca) != before


def test_clients_of_a_ca_that_was_replaced_are_refused(
    folder: Path, page: str, tmp_path: Path
) -> None:
    other = made(tmp_path / "other")
    shutil.copytree(folder, tmp_path / "older")
    older, newer = tls_of(tmp_path / "older", "client"), tls_of(other, "client")
    asked(page, older, folder / "ca.pem")
    for name in ("ca.pem", "verifier-key.pem", "verifier.pem"):
        shutil.copy(other / name, folder / name)
    asked(page, newer, newer.ca)
    with pytest.raises(OSError):
        asked(page, older, newer.ca)


@pytest.mark.parametrize("mode", ["disabled", "", "k8s"])
@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head:10001", "auto"])
def test_a_cluster_that_runs_anybody_s_programs_is_not_joined(
    address: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with (
        pytest.raises(Unusable, match=f"RAY_AUTH_MODE is {mode or 'not set'}"),
        launcher.running(listening("orchestrator", f"--ray-address={address}"), ""),
    ):
        pass
