"""The figures in RESULTS.md and README.md are those of the JSON files that benchmarks wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tandem.benchmarks import page
from tandem.benchmarks.figures import report
from tests.documents import ROOT, rows, section

ORIGIN = ("title", "command", "machine", "date", "commit")


@pytest.mark.parametrize("name", ["benchmarks/RESULTS.md", "README.md"])
def test_a_page_says_what_the_files_say(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(page.MARKED.findall(text)) == 1
    assert page.renewed(text) == text, "run `make results`"


def test_there_are_ten_figures_each_with_its_origin() -> None:
    _, *figures = rows(section(ROOT / "benchmarks" / "RESULTS.md", "Ten figures"))
    assert len(figures) == 10
    for _, figure, command, machine, origin in figures:
        assert re.search(r"\d", figure) and re.fullmatch(r"`.+`", command) and machine
        assert re.fullmatch(r"[0-9a-f]{7}(-dirty)?, \d{4}-\d\d-\d\d", origin)


def test_a_page_is_renewed_between_its_markers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PARTS", {"speeds": lambda: "new"})
    head, tail = "before\n<!-- `make results` writes speeds -->\n", "<!-- end -->\nafter | 1 |\n"
    once = page.renewed(f"{head}\n| old |\n{tail}")
    assert once == f"{head}\nnew\n{tail}"
    assert page.renewed(once) == once


def test_a_benchmark_writes_where_its_figures_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["/usr/bin/python", "-P", "-m", "tandem.benchmarks.chaos", "--json", "f", "--seed=1"]
    monkeypatch.setattr(sys, "orig_argv", command)
    report.write("a pair, somewhere", [{"lost": 0}], file := tmp_path / "figures.json")
    written = json.loads(file.read_text(encoding="utf-8"))
    assert [*written] == [*ORIGIN, "rows"] and written["rows"] == [{"lost": 0}]
    assert written["command"] == "python -m tandem.benchmarks.chaos --seed=1"
    assert all(written[name] for name in ORIGIN)


@pytest.mark.parametrize("name", sorted({name for _, name, _ in page.FIGURES}))
def test_a_file_has_its_origin(name: str) -> None:
    assert {*ORIGIN, "rows"} == page.read(name).keys()
