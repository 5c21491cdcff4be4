"""The committed stubs are what the schemas say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.protos import generate


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stubs made now."""
    folder = tmp_path_factory.mktemp("stubs")
    generate.generate(folder)
    return folder


def test_the_committed_stubs_are_fresh(fresh: Path) -> None:
    assert generate.stale(fresh) == []


def test_the_client_api_and_internal_schemas_do_not_import_each_other() -> None:
    """So that an internal message can be changed without looking at clients."""
    imports = {
        path.stem: set(re.findall(r'import "tandem/v1/(\w+).proto"', path.read_text()))
        for path in (generate.ROOT / generate.STUBS).glob("*.proto")
    }
    assert imports.pop("orchestrator") == set()
    assert "orchestrator" not in set().union(*imports.values())


def test_a_changed_or_missing_stub_is_stale(fresh: Path, tmp_path: Path) -> None:
    stubs = tmp_path / generate.STUBS
    stubs.mkdir(parents=True)
    for path in (fresh / generate.STUBS).iterdir():
        (stubs / path.name).write_bytes(path.read_bytes())
    (stubs / "common_pb2.py").write_text("# edited\n")
    (stubs / "verifier_pb2_grpc.pyi").unlink()
    (stubs / "more_pb2.py").write_text("# nobody has a schema for this\n")
    assert {"common_pb2.py", "more_pb2.py", "verifier_pb2_grpc.pyi"} <= set(
        generate.stale(tmp_path)
    )
