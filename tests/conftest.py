"""The order in which tests begin, what a failure shows, and where the fixtures are."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = ("real", "system", "services", "gpu", "contracts", "laws")  # longest first

pytest.register_assert_rewrite("tests.served")
if not Path("/dev/nvidiactl").exists():  # kernels are interpreted (tests/interpreted.py)
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads the variable when it is imported


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures, and with them the models' libraries, which takes ten seconds. A process
    that only hands tests to others skips this.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(import_module("tests.served"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, so that no process runs alone at the end."""
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(HERE).parts[0]))
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an address is another in each process")
        for mark in item.iter_markers("long"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: long() needs the reason")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add to a failure the command that repeats it, beside the logs of its services."""
    report = yield
    if report.failed:
        report.sections.append(("Repeat it", f".venv/bin/python -m pytest {item.nodeid!r}"))
    return report


@pytest.fixture(scope="module", autouse=True)
def _modules_are_left_as_they_were() -> Iterator[None]:
    """Fail a file of tests that imports a module anew, because it would break the files after
    it.
    """
    yield
    for name, module in list(sys.modules.items()):
        package, _, child = name.rpartition(".")
        if package.startswith("tandem"):
            assert getattr(sys.modules[package], child, module) is module, (
                f"{name} is imported twice"
            )
