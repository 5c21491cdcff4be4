"""The status page: one document that fetches nothing, runs nothing and escapes all names."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.admission import ClientLoad
from tandem.orchestrator.frontend.history import Figures
from tandem.orchestrator.frontend.status import Status
from tandem.orchestrator.page import html
from tandem.orchestrator.page.plot import HEIGHT, WIDTH, Line, plot, top_of_scale
from tandem.orchestrator.page.served import HEADERS
from tandem.protos.types import ModelDescription

HOSTILE = "</td><script>alert(1)</script><img src=x onerror='a'>&\""
VOID = {"meta", "path", "br", "img"}


class Reader(HTMLParser):
    """Elements, attributes and text of a document; fails if one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def figures(seconds: float = 5.0, rate: float | None = 0.4, tokens: float = 100.0) -> Figures:
    return Figures(seconds, tokens, rate, 1.6, 103.0, 52.0, 0.5, 1.3, 3, 1, 2, 0)


def status(name: str = "target", *problems: str, count: int = 20) -> Status:
    model = ModelDescription(name, "", 10, 10, (), "cpu", "float32", 3, name, 0.25)
    verifier = ReplicaStatus(name, model, 0.0012)
    drafter = ReplicaStatus(name, None, 0.0, "no answer in 2 s")
    history = tuple(figures() for _ in range(count))
    clients = (ClientLoad(name, 2, 1),)
    last = figures(60.0)
    return Status(name, "", problems, (verifier,), (drafter,), 2, 1, clients, last, history)


def test_the_page_fetches_and_runs_nothing() -> None:
    page = Reader(html.page(status(), "1.2.3", "now"))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "base"}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert attributes.get("href", "metrics") in ("metrics", "status.json")
    assert "url(" not in html.page(status(), "", "") and "@import" not in html.STYLE


def test_its_policy_allows_its_own_style_and_nothing_else() -> None:
    text = html.page(status(), "1.2.3", "now")
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = dict(HEADERS)["Content-Security-Policy"]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy


def test_every_name_is_escaped() -> None:
    page = Reader(html.page(status(HOSTILE, HOSTILE), HOSTILE, HOSTILE))
    assert not {tag for tag, _ in page.elements} & {"script", "img"}
    assert page.text.count(HOSTILE) == 9


def test_what_is_wrong_comes_first() -> None:
    good, bad = html.page(status(), "", ""), html.page(status("t", "no verifier serves"), "", "")
    assert "no verifier serves" not in good and ">serving<" in good
    assert bad.index("no verifier serves") < bad.index("tiles") + bad.index("</style>")
    assert ">not serving<" in bad and "no answer in 2 s" in bad


def test_what_was_not_counted_is_no_zero() -> None:
    assert (html.number(None), html.percent(None), html.percent(0.0)) == ("–", "–", "0 %")  # noqa: RUF001
    assert [html.number(v) for v in (0.0, 1.234, 12.34, 123.4)] == ["0.00", "1.23", "12.3", "123"]


@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_a_page_can_be_made_of_any_history(count: int) -> None:
    page = Reader(html.page(status(count=count), "", ""))
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == 4


values = st.one_of(st.none(), st.floats(0, 1e9))


@given(st.lists(values, max_size=40), st.floats(1, 1000))
def test_a_plot_stays_within_its_frame(found: list[float | None], seconds: float) -> None:
    points = [(float(len(found) - at), value) for at, value in enumerate(found)]
    line = Line("a", "first", points)
    top = top_of_scale([line])
    assert all(value <= top * (1 + 1e-9) for value in found if value is not None)
    drawn = re.findall(r'class="line first" d="([^"]*)"', plot("a", [line], seconds, top))
    places = re.findall(r"([-\d.]+) ([-\d.]+)", "".join(drawn))
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)


def test_a_gap_is_no_line() -> None:
    line = Line("a", "first", [(50.0, 1.0), (40.0, 2.0), (30.0, None), (20.0, 2.0), (10.0, 1.0)])
    (drawn,) = re.findall(r'class="line first" d="([^"]*)"', plot("a", [line], 50, 2.0))
    assert drawn == "M0.0 36.0L60.0 0.0M180.0 0.0L240.0 36.0"
