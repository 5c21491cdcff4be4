"""The HTTP pages of a service: their paths, and metrics under vLLM's names."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from tandem.orchestrator.metrics import FrontMetrics
from tandem.protos import errors
from tandem.protos.service import pages as module
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.service.vllm_names import SAME
from tests.waiting import LIMIT, wait_until


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@contextmanager
def served(registry: CollectorRegistry) -> Iterator[str]:
    pages = Pages(registry)
    pages.add("/hello", hello)
    with pages_served("127.0.0.1", 0, pages) as address:
        yield address


def filled() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("tandem_model_info", "", ("model", "dtype"), registry=registry).labels("tiny", "f32").set(
        1
    )
    finished = Counter("tandem_request_success", "", ("finished_reason",), registry=registry)
    finished.labels("stop").inc(3)
    Histogram("tandem_time_to_first_token_seconds", "", registry=registry).observe(0.2)
    Counter("tandem_steps", "not one of vLLM's", registry=registry).inc()
    return registry


def test_each_path_has_its_page_and_no_other() -> None:
    with served(filled()) as address:
        assert get(address, "/hello") == (200, "hello")
        assert "tandem_steps_total 1.0" in get(address, "/metrics")[1]
        status, text = get(address, "/")
        assert (status, text) == (404, "not found; the pages are /hello /metrics\n")
        assert get(address, "/metrics", "POST")[0] == 405
        assert get(address, "/metrics", "HEAD") == (200, "")


def test_vllms_names_have_the_same_values_and_the_model() -> None:
    with served(filled()) as address:
        status, text = get(address, "/metrics?compat=vllm")
        assert get(address, "/metrics?compat=sglang")[0] == 400
    assert status == 200
    found = {
        (sample.name, sample.labels.get("model_name"), sample.labels.get("finished_reason")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["vllm:request_success_total", "tiny", "stop"] == 3
    assert found["vllm:time_to_first_token_seconds_sum", "tiny", None] == 0.2
    assert {model for _, model, _ in found} == {"tiny"}
    assert not any("tandem" in name or "steps" in name for name, *_ in found)


def test_what_has_a_name_of_vllms_is_counted() -> None:
    registry = CollectorRegistry()
    FrontMetrics(registry)
    counted = {family.name for family in registry.collect()}
    assert SAME - counted == {"tandem_kv_cache_usage_perc"}, "that is the model services' own"


def test_a_client_that_sends_nothing_holds_nobody_up() -> None:
    with served(filled()) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))):
            assert get(address, "/hello")[0] == 200


def test_more_connections_at_once_than_the_limit_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    with served(filled()) as address, ExitStack() as scope:
        host, _, port = address.rpartition(":")
        silent = [
            scope.enter_context(socket.create_connection((host, int(port)), timeout=LIMIT))
            for _ in range(3)
        ]
        assert silent[2].recv(1) == b""
        silent[0].close()

        def has_room() -> bool:
            """Return whether a connection is free, once the thread of the closed one has ended."""
            try:
                return get(address, "/hello")[0] == 200
            except (http.client.HTTPException, OSError):
                return False

        wait_until(has_room)


def test_a_request_that_comes_byte_by_byte_has_as_long_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 0.2)
    with served(filled()) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.setblocking(False)

            def closed() -> bool:
                """Return whether one more byte comes too late."""
                try:
                    connection.sendall(b"x")
                    return not connection.recv(1)
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True

            wait_until(closed)


def test_a_port_in_use_is_refused_by_its_number() -> None:
    with served(filled()) as address:
        port = int(address.rpartition(":")[2])
        with (
            pytest.raises(errors.Unusable, match=f"metrics port {port} on 127.0.0.1"),
            pages_served("127.0.0.1", port, Pages(filled())),
        ):
            raise AssertionError("two servers share a port")
