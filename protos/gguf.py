"""Reads the head of a GGUF file: its metadata, its tokens, and the offsets of its tensors.

The weights are not read.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from tandem.protos.errors import Unusable

MAGIC = b"GGUF"
NUMBERS = dict(enumerate("BbHhIif?", 0)) | {
    10: "Q",
    11: "q",
    12: "d",
}  # `struct` format of each number type, by GGUF's type id
STRING, LIST = 8, 9
COMPARABLE = ("gpt2", "llama")  # vocabulary types whose tokens are spelled as in tokenizer.json
DAMAGED = (OSError, struct.error, ValueError, LookupError, ArithmeticError, EOFError)
TOO_MUCH = (MemoryError, RecursionError)  # errors that only damaged files raise
UNUSED = 5  # type of padding tokens, which only fill up the vocabulary
ALIGNMENT = 32  # default alignment of the tensor data, in bytes
VOCABULARY = tuple(
    f"tokenizer.ggml.{each}" for each in ("tokens", "scores", "token_type", "merges")
)
ENDS = ("eos", "eot", "eom")
CONTROL = 3  # type of control tokens, which never stand for text
# end tokens that GGUF files often do not declare; llama.cpp also recognizes them by their text
TURN_ENDS = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
}


def is_gguf(model: Path) -> bool:
    """Tell whether a model is a GGUF file rather than a directory."""
    return model.suffix == ".gguf"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a GGUF file. `kind` is ggml's id of the tensor's type. The tensor's bytes begin
    at `offset`.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def numbers(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a GGUF file before its weights. `light` has the bytes of this part, but
    without the vocabulary, so that they can be parsed quickly.
    """

    metadata: dict[str, Any]
    tensors: list[StoredTensor]
    light: bytes

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens that end a text, a turn or a message. Some end tokens are
        declared in the metadata, others are recognized by their text.
        """
        known, ends = self.metadata, set[int]()
        ends |= {known[key] for end in ENDS if (key := f"tokenizer.ggml.{end}_token_id") in known}
        tokens = known.get("tokenizer.ggml.tokens", ())
        kinds = known.get("tokenizer.ggml.token_type", ())
        controls = {
            token: index
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind == CONTROL
        }
        if "<|return|>" in controls:
            controls.pop("<|end|>", None)  # in such a model `<|end|>` does not end a turn
        ends |= {controls[token] for token in TURN_ENDS & controls.keys()}
        return tuple(sorted(ends))


def metadata(file: Path) -> dict[str, Any]:
    """Return a GGUF file's metadata; raises Unusable if the file cannot be read."""
    return head(file).metadata


def head(file: Path) -> Head:
    """Read the part of a GGUF file before the weights. Raises Unusable if it cannot be read."""
    try:
        with file.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise Unusable(f"{file} is not a GGUF file")
            version, count, keys = _unpack(stream, "<IQQ")
            if version < 2:
                raise Unusable(f"{file} is GGUF version {version}, below 2: convert it again")
            known, kept = {}, list[bytes]()
            for _ in range(keys):
                start = stream.tell()
                key, value = _entry(stream)
                known[key] = value
                if not key.startswith(VOCABULARY):
                    kept.append(_again(stream, start))
            start = stream.tell()
            found = [_tensor(stream) for _ in range(count)]
            light = MAGIC + struct.pack("<IQQ", version, count, len(kept))
            light += b"".join(kept) + _again(stream, start)
            unit = known.get("general.alignment", ALIGNMENT)
            begin = -(-stream.tell() // unit) * unit
            placed = [replace(each, offset=begin + each.offset) for each in found]
            return Head(known, placed, light)
    except FileNotFoundError as error:
        raise Unusable(f"{file} is not there") from error
    except (*DAMAGED, *TOO_MUCH) as error:
        raise Unusable(f"{file} is a damaged GGUF file") from error


def tokens(file: Path) -> dict[int, str]:
    """Return a map from token ids to tokens, read from a GGUF file. Raises Unusable if the file
    cannot be read, or if the tokens cannot be compared with those of a tokenizer.json.
    """
    found = metadata(file)
    kind, listed = found.get("tokenizer.ggml.model"), found.get("tokenizer.ggml.tokens", [])
    if kind not in COMPARABLE or not listed:
        known = " or ".join(COMPARABLE)
        raise Unusable(
            f"{file} has a vocabulary of type {kind!r}, which cannot be compared with a tokenizer:"
            f" only {known} can"
        )
    kinds = found.get("tokenizer.ggml.token_type") or [0] * len(listed)
    if len(kinds) != len(listed):
        raise Unusable(
            f"{file} is a damaged GGUF file: it gives {len(kinds)} token types for"
            f" {len(listed)} tokens"
        )
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


def _again(stream: BinaryIO, start: int) -> bytes:
    """Reread the bytes from `start` up to the current position."""
    count = stream.tell() - start
    stream.seek(start)
    return stream.read(count)


def _tensor(stream: BinaryIO) -> StoredTensor:
    name = _text(stream)
    (count,) = _unpack(stream, "<I")
    shape = _unpack(stream, f"<{count}Q")
    kind, offset = _unpack(stream, "<IQ")
    return StoredTensor(name, shape[::-1], kind, offset)


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
