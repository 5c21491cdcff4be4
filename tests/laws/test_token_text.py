"""The text and the bytes of a token, as log-probabilities name it."""

from __future__ import annotations

import tandem.models
from tandem.orchestrator.http.replies import Head, Reply
from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.requests.answer import Chunk
from tandem.orchestrator.requests.request import Request
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.types import TokenLogprobs
from tests.laws.test_text import with_sentence_pieces

TEXT = "The café 世界 😀 was\n\tthere, “so”."


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = load_tokenizer(tandem.models.TARGET)
    texts, ids = TokenTexts(tokenizer), tokenizer.encode(TEXT).ids
    assert b"".join(texts.of(token)[1] for token in ids) == TEXT.encode()
    names = [texts.name(token) for token in ids]
    assert TEXT.startswith(names[0])
    partial = [name for name in names if name.startswith("bytes:")]
    assert partial and all("\ufffd" not in name for name in names)


def test_offsets_are_those_of_the_text_also_behind_a_character_of_several_tokens() -> None:
    tokenizer = load_tokenizer(tandem.models.TARGET)
    ids = tokenizer.encode("a\u4e16b").ids
    assert len(ids) > 3
    reply = Reply(Head("id", "m", 0, chat=False), 0, Request(logprobs=0), TokenTexts(tokenizer))
    offsets = [
        offset
        for token in ids
        for piece in reply.chunk(Chunk("", (token,), 1, (TokenLogprobs(-1.0, ()),)))
        for offset in piece["choices"][0]["logprobs"]["text_offset"]
    ]
    assert (offsets[0], offsets[1], offsets[-1]) == (0, 1, 2)


def test_every_byte_of_a_vocabulary_has_a_name_of_its_own() -> None:
    tokenizer = load_tokenizer(tandem.models.TARGET)
    texts = TokenTexts(tokenizer)
    single = {
        content[0]: texts.name(token)
        for token in range(tokenizer.get_vocab_size())
        if len(content := texts.of(token)[1]) == 1
    }
    assert len(single) == 256 == len(set(single.values()))


def test_sentencepiece_keeps_its_spaces_and_bytes() -> None:
    tokenizer = with_sentence_pieces()
    texts, ids = TokenTexts(tokenizer), map(tokenizer.token_to_id, ["▁was", "x", "<0xE4>"])
    was, letter, byte = ids
    assert (texts.of(was), texts.of(letter)) == ((" was", b" was"), ("x", b"x"))
    assert (texts.of(byte)[1], texts.name(byte)) == (b"\xe4", "bytes:\\xe4")
