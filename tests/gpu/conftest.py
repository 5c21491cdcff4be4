"""These tests need a CUDA device; elsewhere they are skipped.

    python -m pytest tests/gpu

The tests need neither Ray nor pytest-asyncio nor a network, and of the packages of `pyproject.toml`
only those of the drafter and the verifier.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from tandem import models
from tests.families import build

HERE = Path(__file__).parent
logging.disable_progress_bar()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests on a machine without a CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the directory of a tiny random model, with the embedded
    tokenizer.
    """
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            folder = made[name] = tmp_path_factory.mktemp(name)
            build(name, 0).save_pretrained(folder)
            for file in models.TARGET.glob("tokenizer*"):
                shutil.copy(file, folder)
        return made[name]

    return make
