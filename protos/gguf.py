"""The metadata of a GGUF file, read without the library that runs it.

Reads the head of the file alone; knows nothing of weights.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from tandem.protos.errors import Unusable

MAGIC = b"GGUF"
NUMBERS = dict(enumerate("BbHhIif?", 0)) | {
    10: "Q",
    11: "q",
    12: "d",
}  # by type, as `struct` names them
STRING, LIST = 8, 9
COMPARABLE = ("gpt2", "llama")  # vocabularies whose tokens are written as in a tokenizer.json
DAMAGED = (OSError, struct.error, ValueError, LookupError, ArithmeticError, EOFError)
TOO_MUCH = (MemoryError, RecursionError)  # nested, or long, as no file is that is whole
UNUSED = 5  # a token that only fills the vocabulary up


def is_gguf(model: Path) -> bool:
    """Whether a model is such a file rather than a directory."""
    return model.suffix == ".gguf"


def metadata(file: Path) -> dict[str, Any]:
    """All keys and values; raises Unusable."""
    try:
        with file.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise Unusable(f"{file} is not a GGUF file")
            version, _, count = _unpack(stream, "<IQQ")
            if version < 2:
                raise Unusable(f"{file} is GGUF version {version}, below 2: convert it again")
            return dict(_entry(stream) for _ in range(count))
    except FileNotFoundError as error:
        raise Unusable(f"{file} is not there") from error
    except (*DAMAGED, *TOO_MUCH) as error:
        raise Unusable(f"{file} is a damaged GGUF file") from error


def tokens(file: Path) -> dict[int, str]:
    """The token of every id; raises Unusable if it cannot be compared with a tokenizer's."""
    found = metadata(file)
    kind, listed = found.get("tokenizer.ggml.model"), found.get("tokenizer.ggml.tokens", [])
    if kind not in COMPARABLE or not listed:
        known = " or ".join(COMPARABLE)
        raise Unusable(f"{file} has the vocabulary {kind!r}, not {known}: it cannot be compared")
    kinds = found.get("tokenizer.ggml.token_type") or [0] * len(listed)
    if len(kinds) != len(listed):
        raise Unusable(f"{file} is a damaged GGUF file: {len(kinds)} kinds of {len(listed)} tokens")
    return {
        index: token
        for index, (token, use) in enumerate(zip(listed, kinds, strict=True))
        if not (use == UNUSED and token == f"[PAD{index}]")
    }


def _unpack(stream: BinaryIO, pattern: str) -> tuple[Any, ...]:
    return struct.unpack(pattern, stream.read(struct.calcsize(pattern)))


def _entry(stream: BinaryIO) -> tuple[str, Any]:
    key = _text(stream)
    (kind,) = _unpack(stream, "<I")
    return key, _value(stream, kind)


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(stream)
    if kind != LIST:
        return _unpack(stream, "<" + NUMBERS[kind])[0]
    kind, count = _unpack(stream, "<IQ")
    if kind in NUMBERS:
        return list(_unpack(stream, f"<{count}{NUMBERS[kind]}"))
    return [_value(stream, kind) for _ in range(count)]


def _text(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "<Q")
    text = stream.read(length)
    if len(text) < length:
        raise EOFError
    return text.decode("utf-8", errors="surrogateescape")
