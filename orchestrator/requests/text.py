"""Turn the tokens of a growing completion into text. Incomplete characters and possible beginnings
of stop strings are held back.

`TextStream` wraps a Hugging Face tokenizer and holds the state of one completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tandem.protos.tokenizer import tokenizer_of

PROMPT_TAIL = 8  # number of last prompt tokens that affect how the next tokens are decoded
CHARACTER_TOKENS = 4  # a character has at most 4 bytes, each of which may be a token
REPLACEMENT = "\ufffd"  # the decoder's output for bytes that form no character
NO_TOKENS: Mapping[int, str] = {}


def load_tokenizer(model: Path) -> Tokenizer:
    """Load the tokenizer of a model, with truncation and padding off. Raises Unusable."""
    tokenizer = tokenizer_of(model)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def longest_token(tokenizer: Tokenizer) -> int:
    """Return the length in bytes of the longest token, in the notation of the vocabulary. The
    result is at least 4, since a token may represent a character of 4 bytes.
    """
    return max(4, *(len(token.encode()) for token in tokenizer.get_vocab()))


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return a mapping from the text of each special token to its id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: number for number, token in added.items() if token.special}


class TextStream:
    """Decodes the text of a growing completion, up to a stop string. Stop strings that end within
    the first `min_tokens` tokens are ignored. Special tokens are left out of the text, except for
    those in `visible`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        visible: Mapping[int, str] = NO_TOKENS,
    ) -> None:
        self.text = ""
        self.matched: str | None = None
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._newest: list[int] = []  # the last token that added text, if any
        self._stop = stop
        self._min_tokens = min_tokens
        self._visible = visible
        self._held = ""
        self._ignored = 0  # no stop string may end within this many characters of `_held`
        tail = self._tail(prompt)
        decoded = "".join(map(self._decoded, tail))
        self._pending = tokenizer.decode(tail).removeprefix(decoded)  # prompt text still held back

    def push(self, tokens: Iterable[int]) -> tuple[str, int]:
        """Decode tokens up to the first stop string. Returns the text that has become final, and
        the number of tokens that were decoded.
        """
        fresh, used = "", 0
        for token in tokens:
            if self.matched is not None:
                break
            used += 1
            self._min_tokens -= 1
            piece = self._visible.get(token) or self._decoded(token)
            if piece:
                piece, self._pending = piece.removeprefix(self._pending), ""
            fresh += self._take(piece, may_end=self._min_tokens < 0)
        self.text += fresh
        return fresh, used

    def finish(self) -> str:
        """Return the text that was held back because it might have become a stop string."""
        rest, self._held = self._held, ""
        self.text += rest
        return rest

    def _decoded(self, token: int) -> str:
        """Return the text that a token adds; empty if the token ends within a character."""
        try:
            piece = self._stream.step(self._tokenizer, token)
        except Exception:  # the held bytes form no character, so they are dropped
            self._stream = DecodeStream(skip_special_tokens=True)
            for newest in self._newest:
                self._stream.step(self._tokenizer, newest)
            piece = self._stream.step(self._tokenizer, token)
        if piece:
            self._newest = [token]
        return piece or ""

    def _tail(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the last tokens of the prompt, beginning at the start of a character."""
        tails = (prompt[-size:] for size in range(PROMPT_TAIL, PROMPT_TAIL - CHARACTER_TOKENS, -1))
        whole = (tail for tail in tails if not self._tokenizer.decode(tail).startswith(REPLACEMENT))
        return next(whole, ())

    def _take(self, piece: str, may_end: bool) -> str:
        """Add a piece of text and return the text that has become final. Text that may be the
        beginning of a stop string is held back. `may_end` says whether a stop string may end within
        the piece.
        """
        self._held += piece
        if not may_end:
            self._ignored = len(self._held)
        found = [(at, stop) for stop in self._stop if (at := self._find(stop)) >= 0]
        if found:
            at, self.matched = min(found)
            final, self._held = self._held[:at], ""
            return final
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        final, self._held = self._held[:cut], self._held[cut:]
        self._ignored = max(0, self._ignored - cut)
        return final

    def _find(self, stop: str) -> int:
        return self._held.find(stop, max(0, self._ignored - len(stop) + 1))


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
