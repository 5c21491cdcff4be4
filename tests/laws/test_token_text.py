"""A token's text and bytes, as log-probabilities name it."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models

import tandem.models
from tandem.orchestrator.frontend.answer import Chunk
from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.orchestrator.http.replies import Reply
from tandem.orchestrator.http.token_text import TokenTexts
from tandem.protos.types import TokenLogprobs

TEXT = "The café 世界 😀 was\n\tthere, “so”."


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = load_tokenizer(tandem.models.TARGET)
    texts, ids = TokenTexts(tokenizer), tokenizer.encode(TEXT).ids
    assert b"".join(texts.of(token)[1] for token in ids) == TEXT.encode()
    names = [texts.name(token) for token in ids]
    assert "".join(names[:2]) == "The c" or names[0] == "The"
    partial = [name for name in names if name.startswith("bytes:")]
    assert partial and all("\ufffd" not in name for name in names)


def test_offsets_are_those_of_the_text_also_behind_a_character_of_several_tokens() -> None:
    tokenizer = load_tokenizer(tandem.models.TARGET)
    ids = tokenizer.encode("a\u4e16b").ids
    assert len(ids) > 3
    reply = Reply("id", "m", 0, False, True, TokenTexts(tokenizer))
    offsets = [
        offset
        for token in ids
        for offset in reply.chunk(Chunk("", (token,), 1, (TokenLogprobs(-1.0, ()),)))["choices"][0][
            "logprobs"
        ]["text_offset"]
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
    tokenizer = Tokenizer(models.BPE({"\u2581was": 0, "was": 1, "<0xE4>": 2}, []))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    texts = TokenTexts(tokenizer)
    assert [texts.of(token) for token in (0, 1)] == [(" was", b" was"), ("was", b"was")]
    assert (texts.of(2)[1], texts.name(2)) == (b"\xe4", "bytes:\\xe4")
