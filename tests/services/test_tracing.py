"""Spans are made where tracing is on; where it is off, tracing costs nothing and stops nothing."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

import pytest

from tandem.protos.errors import Unusable
from tandem.protos.service import tracing
from tests.services.collector import collecting

ABOVE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a clock that advances by a second at each reading."""
    seconds = count(1)
    monkeypatch.setattr(tracing, "time_ns", lambda: next(seconds) * 10**9)


def test_without_an_endpoint_a_span_is_what_is_passed_on_and_nothing_else() -> None:
    with tracing.exporting("", "it"):
        span = tracing.begin("name", ABOVE, request_id="id")
        span.part("part")
        span.end(ValueError("why"))
        assert span.traceparent == ABOVE
        assert tracing.begin("name").traceparent == ""
    assert tracing.metadata("") == ()
    assert tracing.metadata(ABOVE) == (("traceparent", ABOVE),)


def test_what_is_no_traceparent_is_not_passed_on() -> None:
    assert tracing.given(ABOVE) == ABOVE
    for wrong in ("", f"{ABOVE} ", ABOVE[:-1], ABOVE.upper() + "\n", "x" * 16384):
        assert tracing.given(wrong) == ""


async def test_spans_reach_the_collector_with_their_parts_and_without_texts_of_errors(
    clock: None,
) -> None:
    def work(endpoint: str) -> None:
        with tracing.exporting(endpoint, "it"):
            span = tracing.begin("whole", ABOVE, request_id="id")
            span.part("first", tokens=3)
            span.part("second")
            below = tracing.begin("below", span.traceparent)
            below.end(ValueError("a secret"))
            span.end()

    async with collecting() as collector:
        await asyncio.to_thread(work, collector.endpoint)
        spans = {each.name: each for each in collector.spans}
        assert spans.keys() == {"whole", "first", "second", "below"}
        whole = spans["whole"]
        assert {each.trace for each in spans.values()} == {ABOVE.split("-")[1]}
        assert whole.parent == ABOVE.split("-")[2]
        assert {spans[name].parent for name in ("first", "second", "below")} == {whole.own}
        assert spans["first"].attributes == {"tokens": 3}
        assert [spans[name].seconds for name in ("first", "second")] == [1, 1]
        assert spans["below"].attributes == {"error.type": "ValueError"}
        assert whole.attributes == {"request_id": "id"}


async def test_a_client_whose_trace_is_not_sampled_has_no_spans() -> None:
    def work(endpoint: str) -> str:
        with tracing.exporting(endpoint, "it"):
            span = tracing.begin("whole", f"{ABOVE[:-1]}0")
            span.part("part")
            span.end()
            tracing.begin("another", "no traceparent\n" * 99).end()
            return span.traceparent

    async with collecting() as collector:
        passed_on = await asyncio.to_thread(work, collector.endpoint)
        assert [each.name for each in collector.spans] == ["another"]
        assert passed_on.split("-")[1] == ABOVE.split("-")[1]
        assert passed_on.endswith("-00"), "nobody below makes any either"


def test_a_collector_that_is_not_there_is_reported_and_stops_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tracing.exporting("http://127.0.0.1:1", "it"):
        tracing.begin("whole").end()
    assert "traces are not exported" in capsys.readouterr().out


def test_without_the_extra_one_line_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(Unusable, match=r"pip install 'tandem-serving\[traces\]'"),
        tracing.exporting("http://127.0.0.1:1", "it"),
    ):
        pass
