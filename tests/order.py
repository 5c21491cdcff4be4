"""Which tests begin first, and what a failure shows."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = ("real", "system", "services", "gpu", "contracts", "laws")  # longest first


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, so that no process runs alone at the end."""
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(HERE).parts[0]))
    for item in items:
        for mark in item.iter_markers("long"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: long() needs the reason")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failure shows the command that repeats it, beside the logs of its services."""
    report = yield
    if report.failed:
        report.sections.append(("Repeat it", f".venv/bin/python -m pytest {item.nodeid!r}"))
    return report
