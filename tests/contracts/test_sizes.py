"""Code stays small: files and functions have limits, so that a reader can follow each."""

from __future__ import annotations

import ast
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
LONGEST_FILE, LONGEST_FUNCTION = 250, 50


def test_no_file_and_no_function_is_longer_than_a_reader_can_follow() -> None:
    """A function counts from its `def` to its end."""
    too_long = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > LONGEST_FILE:
            too_long[name] = lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    too_long[f"{name}:{node.lineno} {node.name}"] = lines
    assert too_long == {}


def test_the_embedded_pair_is_small_enough_to_ship() -> None:
    folder = ROOT / "models" / "embedded"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 16 * 2**20
