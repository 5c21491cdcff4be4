"""What a model service says while it gets ready."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import load_and_test
from tests.conftest import Pair


@pytest.mark.parametrize(("left", "warned"), [(1 << 20, True), (1 << 40, False), (None, False)])
def test_more_memory_for_keys_and_values_than_there_is_left_is_said(
    left: int | None, warned: bool, embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.host.available", lambda: left)
    config = ModelServiceConfig(model=embedded.target, kv_bytes="64MiB")
    with capture_logs() as lines:
        load_and_test(config, exact=True)
    said = [line for line in lines if line["log_level"] == "warning" and "left" in line]
    assert [line["left"] for line in said] == [left] * warned
    assert [line["exactness"] for line in lines if line["event"] == "model ready"] == ["exact"]
