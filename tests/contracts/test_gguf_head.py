"""Whatever is wrong with the head of a GGUF file, the error is one line."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tandem.protos import gguf
from tandem.protos.errors import Unusable


def text(value: str) -> bytes:
    """Return a string in the file format."""
    return struct.pack("<Q", len(value)) + value.encode()


def listed(kind: int, items: list[bytes]) -> bytes:
    """Return a list of values of a type in the file format."""
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def head(*entries: tuple[str, int, bytes]) -> bytes:
    """Return a file without weights."""
    keys = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in entries)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + keys


MODEL = ("tokenizer.ggml.model", gguf.STRING, text("gpt2"))
TOKENS = ("tokenizer.ggml.tokens", gguf.LIST, listed(gguf.STRING, [text("a"), text("b")]))
KINDS = ("tokenizer.ggml.token_type", gguf.LIST, listed(5, [struct.pack("<i", 1)]))


def test_tokens_are_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(head(MODEL, TOKENS))
    assert gguf.tokens(file) == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    "content",
    [
        head(MODEL, TOKENS, KINDS),
        head(MODEL, TOKENS)[:-1],
        head(("deep", gguf.LIST, struct.pack("<IQ", gguf.LIST, 1) * 5000)),
        head(("long", gguf.STRING, struct.pack("<Q", 1 << 62))),
        head(("what", 99, b"")),
    ],
    ids=["fewer kinds than tokens", "cut off", "nested", "too long", "no type"],
)
def test_a_damaged_head_is_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(Unusable, match=f"{file} is a damaged GGUF file"):
        gguf.tokens(file)


def test_turn_ends_that_converters_do_not_name_end_a_turn(tmp_path: Path) -> None:
    """Such a token ends a turn if it is a control token, but not if it is text; where a turn has
    several parts, the end of a part does not count.
    """
    file = tmp_path / "model.gguf"

    def ends(tokens: dict[str, int]) -> tuple[int, ...]:
        texts = listed(gguf.STRING, [text(token) for token in tokens])
        uses = listed(5, [struct.pack("<i", use) for use in tokens.values()])
        eos = ("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 0))
        kinds, named = (KINDS[0], gguf.LIST, uses), (TOKENS[0], gguf.LIST, texts)
        file.write_bytes(head(MODEL, named, kinds, eos))
        return gguf.head(file).end_token_ids

    assert ends({"</s>": 3, "a": 1, "<|im_end|>": 3, "<|eot_id|>": 1}) == (0, 2)
    assert ends({"<|endoftext|>": 3, "<|end|>": 3, "<|user|>": 3}) == (0, 1)
    assert ends({"<|endoftext|>": 3, "<|end|>": 3, "<|return|>": 3, "<|call|>": 3}) == (0, 2, 3)
