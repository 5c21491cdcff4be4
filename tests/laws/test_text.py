"""Tokens become text as they come, without lost text, halves of characters or parts of a stop
string.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers.models
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from tandem import models
from tandem.orchestrator.requests.text import TextStream, load_tokenizer
from tandem.protos.errors import Unusable

LOST = "\ufffd"
TOKENIZER: Tokenizer = load_tokenizer(models.TARGET)
scripts = st.sampled_from("aé ñ.\nßЖ世界😀👩‍🚀🇫🇷한ไ\u0301") | st.characters(
    codec="utf-8", exclude_characters=LOST
)
PROMPT: list[int] = TOKENIZER.encode("Once").ids
texts = st.text(scripts, max_size=40)
stops = st.lists(st.text("abc é世", min_size=1, max_size=4), min_size=1, max_size=3)


def ids_of(text: str) -> list[int]:
    """Return the tokens of a text."""
    return list(TOKENIZER.encode(text).ids)


def streamed(stream: TextStream, ids: list[int], size: int) -> tuple[list[str], int]:
    """Return the pieces of a completion that comes `size` tokens at a time, and the number of
    tokens used.
    """
    pieces, used = [], 0
    for start in range(0, len(ids), size):
        piece, count = stream.push(ids[start : start + size])
        pieces.append(piece)
        used += count
        if stream.matched is not None:
            break
    return [*pieces, stream.finish()], used


@given(texts, st.integers(1, 6))
def test_the_pieces_are_the_text_and_none_is_half_a_character(text: str, size: int) -> None:
    ids = ids_of(text)
    stream = TextStream(TOKENIZER, PROMPT)
    pieces, used = streamed(stream, ids, size)
    assert "".join(pieces) == stream.text == TOKENIZER.decode(ids) == text
    assert not any(LOST in piece for piece in pieces)
    assert used == len(ids)


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1) | st.integers(2, 300), max_size=30))
def test_whatever_tokens_a_model_emits_the_text_begins_what_they_decode_to(ids: list[int]) -> None:
    """The tokens may be no text: a single byte of a character may be held back to the end, but is
    never invented.
    """
    stream = TextStream(TOKENIZER, PROMPT)
    streamed(stream, ids, 1)
    whole = TOKENIZER.decode(ids)
    assert whole.startswith(stream.text)
    assert set(whole[len(stream.text) :]) <= {LOST}


def test_a_character_of_several_tokens_comes_with_its_last_token() -> None:
    ids = ids_of("世")
    assert len(ids) > 1
    stream = TextStream(TOKENIZER, PROMPT)
    assert [stream.push([token])[0] for token in ids] == [""] * (len(ids) - 1) + ["世"]


def test_a_character_that_the_prompt_began_is_completed() -> None:
    *begun, last = ids_of("世")
    stream = TextStream(TOKENIZER, ids_of("the ") + begun)
    assert stream.push([last, *ids_of("x")])[0] == "世x"


@pytest.mark.parametrize("end", [ids_of("the \ufffd"), ids_of("the 世")[:-1], []])
def test_what_the_prompt_ended_with_is_not_said_again(end: list[int]) -> None:
    assert TextStream(TOKENIZER, end).push(ids_of(" x"))[0] == " x"


def with_sentence_pieces() -> Tokenizer:
    """Return a tokenizer like Llama 2's: words include the space before them, decoding removes the
    first space of a text, and bytes are tokens.
    """
    words = ["<unk>", "▁there", "▁was", "x", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    bytes_and_words = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*bytes_and_words, decoders.Strip(" ", 1, 0)])
    return tokenizer


def test_the_first_word_behind_a_prompt_keeps_its_space() -> None:
    tokenizer = with_sentence_pieces()
    there, was = map(tokenizer.token_to_id, ["▁there", "▁was"])
    assert tokenizer.decode([there]) == "there"
    stream = TextStream(tokenizer, [was], stop=[" was"])
    assert stream.push([there, was]) == (" there", 2)


@given(st.text("世界ខ្មែ", min_size=1, max_size=6), st.text("世界ខ្មែ", min_size=1, max_size=3))
def test_characters_of_byte_tokens_go_on_behind_a_prompt_of_them(prompt: str, text: str) -> None:
    tokenizer = with_sentence_pieces()

    def tokens(of: str) -> list[int]:
        return [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in of.encode()]

    stream = TextStream(tokenizer, tokens(prompt))
    assert "".join(streamed(stream, tokens(text), 1)[0]) == text


def test_bytes_that_never_become_a_character_do_not_end_the_text() -> None:
    tokenizer = with_sentence_pieces()
    tokens = list(map(tokenizer.token_to_id, ["<0x41>", "<0xF0>", "▁there", "<0xF0>", "x"]))
    stream = TextStream(tokenizer, [tokenizer.token_to_id("x")])
    assert stream.push(tokens) == (f"A there{LOST}x", 5)


def test_a_tokenizer_neither_cuts_nor_pads(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(models.TARGET)
    text = "Once upon a time there was a dog. " * 20
    whole = tokenizer.encode(text).ids
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=2000)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(text).ids == whole


def test_special_tokens_have_no_text() -> None:
    end = TOKENIZER.token_to_id("<|endoftext|>")
    assert end is not None
    stream = TextStream(TOKENIZER, PROMPT)
    assert streamed(stream, [*ids_of("one"), end], 1)[0][-2:] == ["", ""]
    assert stream.text == "one"


@given(st.text("abc é世", max_size=30), stops, st.integers(1, 5), st.integers(0, 6) | st.just(0))
def test_the_text_ends_before_the_first_stop_string(
    text: str, stop: list[str], size: int, least: int
) -> None:
    """However many tokens come at once, the last used token is the first one that completes a stop
    string. A stop string that ends within the first `least` tokens does not count; one that only
    begins there does.
    """
    ids = ids_of(text)
    stream = TextStream(TOKENIZER, PROMPT, stop, least)
    pieces, used = streamed(stream, ids, size)
    grown = [TOKENIZER.decode(ids[:count]).rstrip(LOST) for count in range(len(ids) + 1)]
    safe = len(grown[min(least, len(ids))])

    def found(known: str) -> list[int]:
        places = ((s, known.find(s, max(0, safe + 1 - len(s)))) for s in stop)
        return [at for _, at in places if at >= 0]

    first = next((count for count in range(least + 1, len(grown)) if found(grown[count])), None)
    if first is None:
        assert (stream.matched, stream.text, used) == (None, text, len(ids))
    else:
        at = min(found(grown[first]))
        assert (stream.text, used) == (text[:at], first)
        assert stream.matched in stop and text.startswith(stream.matched, at)
        assert stream.push(ids) == ("", 0), "the rest is not used"
    assert "".join(pieces) == stream.text


@given(st.text("abc é世", max_size=30), stops)
def test_nothing_that_was_shown_is_part_of_a_stop_string_or_taken_back(
    text: str, stop: list[str]
) -> None:
    ids = ids_of(text)
    stream = TextStream(TOKENIZER, PROMPT, stop)
    shown = ""
    for token in ids:
        shown += stream.push([token])[0]
        assert shown == stream.text
        assert text.startswith(shown)
        assert not any(s in shown for s in stop)
        if stream.matched is not None:
            return
    assert stream.text + stream.finish() == text


def test_what_may_become_a_stop_string_is_held_back_until_it_does_not() -> None:
    stream = TextStream(TOKENIZER, PROMPT, ["\n\nEND"])
    first, *rest = (ids_of(part) for part in ("one\n\n", "E", "very"))
    assert stream.push(first) == ("one", len(first))
    assert stream.push(rest[0]) == ("", 1)
    assert stream.push(rest[1])[0] == "\n\nEvery"
    assert stream.matched is None


def test_a_stop_string_may_begin_where_none_may_end() -> None:
    begin, end = ids_of("so Lil"), ids_of("ly")
    stream = TextStream(TOKENIZER, PROMPT, ["Lilly", "il"], min_tokens=len(begin))
    assert [stream.push(begin)[0], stream.push(end)[0]] == ["so ", ""]
    assert stream.matched == "Lilly"


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_special_tokens_that_mark_calls_have_a_text_and_others_have_none() -> None:
    tokenizer = load_tokenizer(models.TARGET)
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "[OTHER]"])
    marker, other = (tokenizer.token_to_id(name) for name in ("[TOOL_CALLS]", "[OTHER]"))
    ids = [other, *ids_of("So: 世"), marker, *ids_of("[{}]"), other]
    stream = TextStream(tokenizer, [*PROMPT, marker], visible={marker: "[TOOL_CALLS]"})
    assert streamed(stream, ids, 1)[1] == len(ids)
    assert stream.text == "So: 世[TOOL_CALLS][{}]"
