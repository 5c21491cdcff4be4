"""Code stays small: what a reader can hold in the head is a promise too."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "client",
    "protos",
    "engine",
    "drafter_service",
    "verifier_service",
    "orchestrator",
    "models",
    "benchmarks",
    "examples",
    "tests",
)
FILES = [
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "_pb2" not in path.name
]
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_MEDIAN = 250, 50, 9


def functions() -> dict[str, int]:
    """Lines of every function, from its `def` to its end."""
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                found[place] = (node.end_lineno or node.lineno) - node.lineno + 1
    return found


def test_no_file_is_longer_than_a_reader_can_follow() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    assert {place: lines for place, lines in functions().items() if lines > LONGEST_FUNCTION} == {}


def test_half_of_all_functions_are_short() -> None:
    own = [lines for place, lines in functions().items() if not place.startswith("tests")]
    assert statistics.median(own) <= LONGEST_MEDIAN


def test_the_embedded_pair_is_small_enough_to_ship() -> None:
    folder = ROOT / "models" / "embedded"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 16 * 2**20
