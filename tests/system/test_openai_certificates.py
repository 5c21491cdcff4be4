"""HTTPS where everybody shows a certificate: it is who asks, as over gRPC."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx2
from structlog.testing import capture_logs

from tandem.protos.transport import rpc
from tests.certificates import made, tls_of
from tests.services.protected import protected

BODY = {"model": "target", "prompt": "Once", "max_tokens": 2, "temperature": 0}


async def test_a_certificate_is_who_asks_over_https_too(tmp_path: Path) -> None:
    folder, port = made(tmp_path), rpc.free_port("127.0.0.1")
    own = tls_of(folder, "client")
    assert own.cert and own.key
    context = ssl.create_default_context(cafile=own.ca)
    context.load_cert_chain(own.cert, own.key)
    async with (
        protected(folder, http_port=port),
        httpx2.AsyncClient(verify=context, trust_env=False, timeout=60) as http,
    ):
        with capture_logs() as lines:
            answer = await http.post(f"https://localhost:{port}/v1/completions", json=BODY)
        assert answer.status_code == 200, answer.text
    found = [each["client"] for each in lines if each["event"] == "a request has finished"]
    assert found == ["client"]
