"""The committed stubs match the schemas."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

from tandem.protos import generate
from tandem.protos.types import ModelDescription
from tandem.v1 import common_pb2, orchestrator_pb2


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the stubs anew."""
    folder = tmp_path_factory.mktemp("stubs")
    generate.generate(folder)
    return folder


def test_the_committed_stubs_are_fresh(fresh: Path) -> None:
    assert generate.stale(fresh) == []


def test_the_client_api_and_internal_schemas_do_not_import_each_other() -> None:
    """An internal message can then change without effect on clients."""
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


def numbers(message: type[Message]) -> dict[str, int]:
    """Return the field numbers of a message, by name."""
    return {field.name: field.number for field in message.DESCRIPTOR.fields}


def test_fields_that_clients_depend_on_keep_their_numbers() -> None:
    known = FileDescriptorSet.FromString((generate.ROOT / "client_api.binpb").read_bytes())
    (file,) = (each for each in known.file if each.package == "tandem.v1")
    for message in file.message_type:
        now = numbers(getattr(orchestrator_pb2, message.name))
        assert {each.name: each.number for each in message.field}.items() <= now.items(), message


def test_what_a_service_holds_was_added_after_what_there_was() -> None:
    """The number of a removed field is not used again."""
    held = numbers(common_pb2.ModelDescription)
    assert held.keys() == ModelDescription.__dataclass_fields__.keys()
    assert 9 not in held.values()
    added = ("weights_bytes", "cache_positions", "full_sessions", "tokenizer", "masked_tokens")
    assert [held[name] for name in added] == [*range(16, 21)]
    shown = numbers(orchestrator_pb2.ReplicaStatus)
    new = ("weights_bytes", "context_length", *added[1:])
    assert [shown[name] for name in new] == [*range(16, 22)]
