"""Model directories that tests change, and the messages about those that cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.model.load import load
from tandem.protos.errors import Unusable

WEIGHTS, KEYS = "model.safetensors", "model.layers.0.self_attn.k_proj.weight"


def configure(folder: Path, **settings: Any) -> None:
    """Change a directory's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def refusal(folder: Path) -> str:
    """Return the line that refuses a directory, without the directory's name."""
    with pytest.raises(Unusable) as refused:
        load(folder)
    line = str(refused.value)
    assert line.startswith(str(folder))
    assert "\n" not in line
    return line.removeprefix(str(folder))
