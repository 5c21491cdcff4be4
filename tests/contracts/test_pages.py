"""Everything that the documents name exists: files, headings, commands, options and log events."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tandem.v1 import orchestrator_pb2 as api
from tests.documents import GUIDE, PAGES, ROOT, blocks, code, prose, rows, section, spans

PACKAGES = ("client", "protos", "engine", "drafter_service", "verifier_service", "orchestrator")
KINDS = {"sh", "bash", "console", "python", "yaml", "text", "mermaid"}


def source() -> str:
    """Return all code of the services."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def anchors(page: Path) -> set[str]:
    """Return the fragments by which links address a page's headings."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = list(blocks(page))
    assert {block.kind for block in found} <= KINDS
    assert text.count("```") == 2 * len(found), "a fence that is not read as one"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_targets_modules_and_extras_that_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(code(page))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    modules = re.findall(r"python -m ((?:tandem|examples)[\w.]*)", text)
    places = [ROOT / module.removeprefix("tandem.").replace(".", "/") for module in modules]
    assert [p for p in places if not (p.is_dir() or p.with_suffix(".py").is_file())] == []
    extras = re.findall(r"(?:\"\.|tandem-serving)\[(\w+)\]", text)
    assert set(extras) <= set(project["optional-dependencies"])


def test_all_options_of_the_api_are_documented_and_no_others() -> None:
    heads = {
        "`sampling`": api.Sampling,
        "`stopping`": api.Stopping,
        "`speculation`": api.Speculation,
    }
    documented: dict[str, set[str]] = {head: set() for head in heads}
    head = ""
    for first, *_ in rows(section(ROOT / "docs" / "api.md", "Options")):
        head = first if first in heads else head
        documented[head] |= set() if first in heads else set(spans(first))
    fields = {head: set(kind.DESCRIPTOR.fields_by_name) for head, kind in heads.items()}
    fields["`speculation`"].discard("drafter")  # refused
    assert documented == fields


def test_logged_events_are_those_of_the_code() -> None:
    events = {
        event
        for first, *_ in rows(section(ROOT / "docs" / "operating.md", "Logs"))
        for event in spans(first)
    }
    logged = set(re.findall(r"log\.(?:info|warning|error)\(\s*f?\"([^\"]+)\"", source()))
    assert events == logged != set()
