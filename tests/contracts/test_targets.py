"""`/targets` is the document from which Prometheus learns the metrics addresses of all cells."""

from __future__ import annotations

import json
import threading

from prometheus_client import CollectorRegistry

from tandem.orchestrator.page.served import add_targets
from tandem.protos.service.pages import Pages, pages_served
from tests.contracts.test_probes import get


def test_a_cell_that_knows_no_other_names_itself_as_it_was_asked() -> None:
    pages = Pages(CollectorRegistry())
    add_targets(pages)
    with pages_served("127.0.0.1", 0, pages) as address:
        status, body = get(f"http://{address}/targets")
    assert status == 200
    assert json.loads(body) == [{"targets": [address], "labels": {"__scheme__": "http"}}]


def test_a_cell_names_all_and_their_scheme_or_nothing_if_they_are_not_known_now() -> None:
    pages, asked, may_answer = Pages(CollectorRegistry()), threading.Event(), threading.Event()

    def cells() -> list[str]:
        if not may_answer.is_set():
            asked.set()
            may_answer.wait()
            raise TimeoutError
        return ["http://10.0.0.1:9003", "https://[::1]:9004"]

    add_targets(pages, cells)
    with pages_served("127.0.0.1", 0, pages) as address:
        statuses: list[int] = []
        first = threading.Thread(
            target=lambda: statuses.append(get(f"http://{address}/targets")[0])
        )
        first.start()
        asked.wait()
        assert get(f"http://{address}/targets")[0] == 503, "not one more that waits"
        may_answer.set()
        first.join()
        assert statuses == [503]
        assert json.loads(get(f"http://{address}/targets")[1]) == [
            {"targets": ["10.0.0.1:9003"], "labels": {"__scheme__": "http"}},
            {"targets": ["[::1]:9004"], "labels": {"__scheme__": "https"}},
        ]
