"""Convert single tokens of a vocabulary to text and to bytes. The module is pure."""

from __future__ import annotations

import re
from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from tandem.orchestrator.requests.text import REPLACEMENT, special_tokens
from tandem.protos.tokenizer import SPACE

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# bytes that byte-level vocabularies represent by the character with the same code point
VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_of() -> dict[str, int]:
    """Return a mapping from the characters of a byte-level vocabulary to bytes."""
    others = (byte for byte in range(0x100) if byte not in VISIBLE)
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    written = {chr(byte): byte for byte in VISIBLE} | shifted
    assert set(written) == set(ByteLevel.alphabet())
    return written


class TokenTexts:
    """The text and the bytes of single tokens of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = byte_of()  # maps characters of the vocabulary to bytes
        self.special = frozenset(special_tokens(tokenizer).values())
        self.of = lru_cache(4096)(self._of)

    def _of(self, token: int) -> tuple[str, bytes]:
        """Return a token's text and its bytes. In the text, U+FFFD replaces bytes that do not form
        a complete character.
        """
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        raw = self._tokenizer.id_to_token(token) or ""
        if raw.startswith(SPACE) and not text.startswith(" "):  # decoding removes a leading space
            text = f" {text}"
        if REPLACEMENT not in text:
            return text, text.encode()
        if found := BYTE.fullmatch(raw):
            return text, bytes((int(found[1], 16),))
        if all(character in self._bytes for character in raw):
            return text, bytes(self._bytes[character] for character in raw)
        return text, text.encode()

    def name(self, token: int) -> str:
        """Return a token's text. If the text contains an incomplete character, return the bytes in
        hexadecimal instead, because all incomplete characters look alike.
        """
        text, content = self.of(token)
        if REPLACEMENT not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
