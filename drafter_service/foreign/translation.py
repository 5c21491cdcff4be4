"""Translates committed tokens of the target to tokens of the draft model, and drafts back to tokens
of the target.

Tokens are translated by decoding them to text and encoding that text, so any pair of vocabularies
works. The module is pure. A draft that cannot be written in the target's tokens becomes shorter or
empty, but never causes an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # decoders write this for bytes that do not form a character
# one of these texts is put before a fragment from within a text while the fragment is encoded,
# because tokenizers may encode the start of a text differently
LEADING_TEXTS = ("a", ".", "\n")
SPACES = ("Ġ", "▁", " ")  # how vocabularies write the space before a word
WHITESPACE = (*SPACES, "Ċ", "ċ", "č", "ĉ", "\n")
END_TOKENS = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
)
MIN_TAIL, MAX_TAIL = 3, 24  # minimum and maximum number of tokens after a cut in a text


class Fragments:
    """A tokenizer for fragments of a text. The tokenizer adds no special tokens, and encodes the
    name of a special token like ordinary text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = Tokenizer.from_str(
            tokenizer.to_str()
        )  # a copy, because its settings are changed
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self.specials = {index: token.content for index, token in added.items() if token.special}
        named = {name: index for index, name in self.specials.items()}
        self.end = next((named[name] for name in END_TOKENS if name in named), None)
        self.leading_tokens = self._leading_tokens()
        self._contexts = [
            (context, ids) for context in LEADING_TEXTS if (ids := self._ids(context))
        ]

    def encode(self, text: str, at_start: bool = False) -> list[int]:
        """Return the tokens of a fragment from the middle of a longer text. If `at_start`, the
        fragment is the start of the text.
        """
        for context, ids in () if at_start else self._contexts:
            found = self._ids(context + text)
            if found[: len(ids)] == ids:
                return found[len(ids) :]
        return self._ids(text)

    def decode(self, ids: Sequence[int], at_start: bool = False) -> str:
        """Decode tokens from the middle of a longer text. If `at_start`, the tokens are the start
        of the text.
        """
        plain: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        if at_start or not self._contexts:
            return plain
        context, before = self._contexts[0]
        text: str = self._tokenizer.decode([*before, *ids], skip_special_tokens=False)
        return text[len(context) :] if text.startswith(context) else plain

    def is_word_boundary(self, ids: Sequence[int], at: int) -> bool:
        """Tell whether a word begins at token `at`, so that the text may be cut before that token.
        At such a cut, encoding both parts separately gives the same tokens as encoding the whole
        text.
        """
        before, token = (self._tokenizer.id_to_token(i) or " " for i in ids[at - 1 : at + 1])
        return (
            token.startswith(SPACES)
            and token[1:2].isalpha()
            and not before.endswith(WHITESPACE)
            and ids[at - 1] not in self.specials
        )

    def _leading_tokens(self) -> list[int]:
        """Return the special tokens that every text of this model begins with."""
        whole = self._tokenizer.encode("a").ids
        rest = self._ids("a")
        starts = range(len(whole) - len(rest) + 1)
        return next((whole[:at] for at in starts if whole[at : at + len(rest)] == rest), [])

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        # the vocabulary lacks a token for unknown text; the library has no error class for this
        except Exception:
            return []
        return ids


class Translation:
    """Translates tokens of the target to tokens of the draft model and back."""

    def __init__(self, draft: Tokenizer, target: Tokenizer) -> None:
        self._draft = Fragments(draft)
        self._target = Fragments(target)
        self._draft_specials = _special_tokens(self._target, self._draft)
        self._target_specials = _special_tokens(self._draft, self._target)

    def to_draft(self, tokens: Sequence[int], at_start: bool = True) -> list[int]:
        """Translate committed tokens to tokens of the draft model. If `at_start`, the committed
        tokens are the start of the text; otherwise they follow a word or character boundary within
        the text. An incomplete character at the end is left out, and so are special tokens that the
        draft model lacks.
        """
        draft: list[int] = []
        leading = self._target.leading_tokens
        if at_start:
            draft += self._draft.leading_tokens
            if list(tokens[: len(leading)]) == leading:
                tokens = tokens[len(leading) :]
        for special, group in groupby(tokens, self._target.specials.__contains__):
            if special:
                draft += _mapped(self._draft_specials, group)
            else:
                text = self._target.decode(list(group), at_start)
                draft += self._draft.encode(text.rstrip(REPLACEMENT), at_start)
            at_start = False
        return draft

    def to_target(self, committed: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Translate the tokens drafted after `committed` to tokens of the target. The translation
        ends with the first special token, such as an end-of-text token. The last token may cover
        only a part of a word; it is proposed like any other token.
        """
        count = next((at for at, token in enumerate(drafted) if self.is_special(token)), None)
        text = self._draft.decode(drafted[:count]).partition(REPLACEMENT)[0]
        tokens = self._following(committed, text) if text else []
        ends = () if count is None else _mapped(self._target_specials, drafted[count : count + 1])
        return [*tokens, *ends]

    def is_special(self, token: int) -> bool:
        """Tell whether a token of the draft model is a special token. Drafted tokens after a
        special token are not translated.
        """
        return token in self._draft.specials

    def word_boundary(
        self, committed: Sequence[int], near: int = MIN_TAIL, far: int | None = None
    ) -> int:
        """Return the last index at which a word begins, so that the committed tokens may be cut
        there. The index is at least `near` tokens before the end and, if `far` is given, less than
        `far` tokens before the end. Returns 0 if there is no such index.
        """
        stop = 0 if far is None else max(0, len(committed) - far)
        places = range(len(committed) - near, stop, -1)
        return next((at for at in places if at and self._target.is_word_boundary(committed, at)), 0)

    def character_boundary(self, committed: Sequence[int], near: int) -> int:
        """Return an index at which the committed tokens may be cut between two characters, even
        within a word. Returns 0 if there is no such index. The function is for texts in which no
        `word_boundary` is found.
        """
        places = range(len(committed) - near, max(0, len(committed) - near - 4), -1)
        ends = ((at, self._target.decode(committed[max(0, at - 8) : at])) for at in places)
        return next((at for at, text in ends if not text.endswith(REPLACEMENT)), 0)

    def _following(self, committed: Sequence[int], text: str) -> list[int]:
        """Return the target's tokens for a text that follows the committed tokens. The committed
        tokens are never changed.
        """
        tail, tail_text, at_start = self._tail(committed)
        both = self._target.encode(tail_text.rstrip(REPLACEMENT) + text, at_start)
        if both[: len(tail)] == tail:
            return both[len(tail) :]
        if tail_text.endswith(REPLACEMENT):
            return []  # the text ends within a character that the draft does not complete
        # encoded together with the committed text, this text would change the committed tokens
        return self._target.encode(text)

    def _tail(self, committed: Sequence[int]) -> tuple[list[int], str, bool]:
        """Return the last few committed tokens, their text, and whether they are all of the
        committed tokens. If possible, the first of these tokens is the start of a word.
        """
        start = self.word_boundary(committed, far=MAX_TAIL) or max(0, len(committed) - MAX_TAIL)
        for at in range(start, len(committed)):
            if committed[at] in self._target.specials:
                start = at + 1
        for first in (*range(start, min(start + 4, len(committed))), start):
            tail, at_start = list(committed[first:]), first == 0
            tail_text = self._target.decode(tail, at_start)
            if not tail_text.startswith(REPLACEMENT):
                break  # the tokens begin at a character boundary; a character has at most 4 bytes
        return tail, tail_text, at_start


def _special_tokens(source: Fragments, target: Fragments) -> dict[int, int]:
    """Map the id of each of the source's special tokens to the id of the corresponding special
    token of the target. Two special tokens correspond if they have the same name, or if both mark
    the end of a text.
    """
    names = {name: index for index, name in target.specials.items()}
    same = {index: names[name] for index, name in source.specials.items() if name in names}
    if source.end is not None and target.end is not None:
        same[source.end] = target.end
    return same


def _mapped(mapping: dict[int, int], tokens: Iterable[int]) -> list[int]:
    return [mapping[token] for token in tokens if token in mapping]
