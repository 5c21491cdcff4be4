"""Adds a reference of the gRPC API, generated from the Protobuf schema and its comments, to the
documentation site.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PROTOS = Path(__file__).parents[2] / "protos"
SCHEMA = "tandem/v1/orchestrator.proto"
PAGE = "reference/grpc.md"
Field = descriptor_pb2.FieldDescriptorProto
Message = descriptor_pb2.DescriptorProto
Comments = Mapping[tuple[int, ...], str]  # maps a declaration's path in the schema to its comment

HEAD = f"""# gRPC schema

This page lists the calls, messages and enums of `{SCHEMA}`.
The [client API](../api.md) explains how to use them.
A `?` marks an optional field: leaving it out is not the same as setting it to zero.
"""


def compiled() -> descriptor_pb2.FileDescriptorProto:
    """Compile the Protobuf schema, and return its description with all comments. Raises
    RuntimeError if the schema does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "schema.binpb"
        known = Path(grpc_tools.__file__).parent / "_proto"
        options = ["--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", f"-I{PROTOS}", f"-I{known}", *options, SCHEMA]):
            raise RuntimeError(f"{SCHEMA} does not compile")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def comments_of(schema: descriptor_pb2.FileDescriptorProto) -> Comments:
    """Return a mapping from each declaration's path in the schema to its comment as one line."""
    return {
        tuple(each.path): " ".join(
            f"{each.leading_comments} {each.trailing_comments}".replace("|", r"\|").split()
        )
        for each in schema.source_code_info.location
    }


def link(name: str) -> str:
    """Return the name of a type, as a link to its section if the schema defines the type."""
    short = name.rpartition(".")[2]
    return f"[`{short}`](#{short.lower()})" if name.startswith(".tandem.") else f"`{short}`"


def type_of(field: Field, message: Message) -> str:
    """Return the type of a field as Markdown text."""
    kind = Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    shown = link(field.type_name) if field.type_name else f"`{kind}`"
    entries = {f".tandem.v1.{message.name}.{each.name}": each for each in message.nested_type}
    if entry := entries.get(field.type_name):
        key, value = entry.field
        return f"map from {type_of(key, entry)} to {type_of(value, entry)}"
    if field.label == Field.LABEL_REPEATED:
        return f"list of {shown}"
    return f"{shown} ?" if field.proto3_optional else shown


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield ""
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"


def reference(schema: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """Yield the lines of the reference page: calls, then messages, then enums."""
    comments = comments_of(schema)
    yield HEAD
    for i, service in enumerate(schema.service):
        yield f"\n## {service.name}"
        rows = []
        for j, call in enumerate(service.method):
            answer = "stream of " * call.server_streaming + link(call.output_type)
            meaning = comments.get((6, i, 2, j), "")
            rows.append([f"`{call.name}`", link(call.input_type), answer, meaning])
        yield from table(["call", "request", "response", "meaning"], rows)
    for i, message in enumerate(schema.message_type):
        yield f"\n## {message.name}\n\n{comments.get((4, i), '')}"
        rows = [
            [f"`{field.name}`", type_of(field, message), comments.get((4, i, 2, j), "")]
            for j, field in enumerate(message.field)
        ]
        yield from table(["field", "type", "meaning"], rows)
    for i, enum in enumerate(schema.enum_type):
        yield f"\n## {enum.name}\n\n{comments.get((5, i), '')}"
        values = [
            [f"`{value.name}`", comments.get((5, i, 2, j), "")]
            for j, value in enumerate(enum.value)
        ]
        yield from table(["value", "meaning"], values)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the gRPC reference to the site."""
    content = "\n".join(reference(compiled())) + "\n"
    files.append(File.generated(config, PAGE, content=content))
    return files
