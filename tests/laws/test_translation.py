"""Translation between two tokenizers: a draft in the other tokens continues the committed text, or
there is no draft.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tandem.benchmarks.peers.prompts import story_prompts
from tandem.drafter_service.foreign.target_text import MIN_TAIL, TargetText
from tandem.drafter_service.foreign.translation import REPLACEMENT, Translation
from tandem.models import EMBEDDED, TARGET

PAIRS = [
    ("embedded", "foreign"),
    ("embedded", "pieces"),
    ("embedded", "words"),
    ("pieces", "foreign"),
    ("words", "embedded"),
]
scripts = st.sampled_from("aé ñ.\nßЖ世界😀👩‍🚀🇫🇷한ไ▁Ġ\u0301") | st.characters(
    codec="utf-8", exclude_characters=REPLACEMENT
)
words = st.sampled_from(
    ["Once", " upon", " a time", ", ", "  ", "\n\n", "didn't", "</s>", "<|endoftext|>", " 12"]
)
texts = st.lists(words | st.text(scripts, max_size=8), max_size=12).map("".join)
cuts = st.floats(0, 1)


@cache
def tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer: the embedded pair's, the foreign drafter's, or one of two other families.
    None of the tokenizers reads words as special tokens.
    """
    folders = {"embedded": TARGET, "foreign": EMBEDDED.parent / "foreign"}
    if name in folders:
        made = Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
    else:
        made = pieces() if name == "pieces" else bare_words()
    made.encode_special_tokens = True
    return made


def pieces() -> Tokenizer:
    """Return a tokenizer like Llama 2's: it marks spaces, puts a space in front, spells out bytes,
    normalises text and begins it with a token.
    """
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special + alphabet)
    made.train_from_iterator(story_prompts(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def bare_words() -> Tokenizer:
    """Return a tokenizer that lowers case, drops spaces, and has no token for an unknown word."""
    made = Tokenizer(models.WordLevel())
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(story_prompts(), trainers.WordLevelTrainer(special_tokens=["<eos>"]))
    return made


@cache
def translation(theirs: str, own: str) -> Translation:
    """Return a translation, made once for all examples."""
    return Translation(tokenizer(own), tokenizer(theirs))


def ids_of(name: str, text: str) -> list[int]:
    """Return the tokens of a text, or none if the tokenizer cannot express it."""
    try:
        return list(tokenizer(name).encode(text, add_special_tokens=False).ids)
    except Exception:
        return []


def text_of(name: str, ids: list[int]) -> str:
    """Return the text of all tokens."""
    return str(tokenizer(name).decode(ids, skip_special_tokens=False))


def ids(name: str) -> st.SearchStrategy[list[int]]:
    """Any tokens."""
    return st.lists(st.integers(0, tokenizer(name).get_vocab_size() - 1), max_size=40)


def until(sequence: list[int], share: float) -> list[int]:
    """Return this share of a sequence, from its beginning."""
    return sequence[: round(len(sequence) * share)]


@pytest.mark.parametrize("pair", PAIRS)
@settings(max_examples=60)
@given(data=st.data(), text=texts, draft=texts, cut=cuts)
def test_any_draft_continues_any_committed_tokens(
    pair: tuple[str, str], data: st.DataObject, text: str, draft: str, cut: float
) -> None:
    theirs, own = pair
    committed = until(ids_of(theirs, text), cut) + data.draw(ids(theirs) | st.just([]))
    drafted = data.draw(ids(own) | st.just(ids_of(own, draft)))
    for token in translation(*pair).to_draft(committed):
        assert 0 <= token < tokenizer(own).get_vocab_size()
    said = translation(*pair).to_target(committed, drafted)
    before = text_of(theirs, committed).rstrip(REPLACEMENT)
    assert text_of(theirs, committed + said).startswith(before)


@given(text=texts, cut=cuts)
def test_the_same_tokenizer_translates_a_draft_to_itself(text: str, cut: float) -> None:
    whole = ids_of("embedded", text)
    committed = until(whole, cut)
    while text_of("embedded", committed).endswith(REPLACEMENT):
        committed.pop()
    drafted = whole[len(committed) :]
    same = translation("embedded", "embedded")
    assert same.to_target(committed, drafted) == drafted
    assert same.to_draft(committed) == committed


@given(text=texts, draft=texts, cut=cuts)
def test_what_is_said_is_the_beginning_of_what_was_meant(text: str, draft: str, cut: float) -> None:
    """Between two byte-level tokenizers only half a character can be lost."""
    committed = until(ids_of("embedded", text), cut)
    before = text_of("embedded", committed).rstrip(REPLACEMENT)
    there = translation("embedded", "foreign")
    assert text_of("foreign", there.to_draft(committed)) == before
    said = there.to_target(committed, ids_of("foreign", draft))
    after = text_of("embedded", committed + said).rstrip(REPLACEMENT)
    assert after == before + draft or not said


@given(texts)
def test_half_a_character_is_left_out_and_its_other_half_can_be_drafted(text: str) -> None:
    there = translation("embedded", "foreign")
    whole = ids_of("embedded", text + " 世")
    half = whole[:-1]
    assert text_of("embedded", half).endswith(REPLACEMENT), "a character of several tokens"
    assert text_of("foreign", there.to_draft(half)) == text_of("embedded", half).rstrip(REPLACEMENT)
    assert there.to_target(half, ids_of("foreign", "世")) == whole[-1:]
    assert there.to_target(half, ids_of("foreign", "x")) == []


def test_the_end_of_a_text_is_told_by_its_own_token_in_both_directions() -> None:
    there = translation("embedded", "foreign")
    (theirs,), (own,) = (
        [made.token_to_id(name)]
        for made, name in ((tokenizer("embedded"), "<|endoftext|>"), (tokenizer("foreign"), "</s>"))
    )
    said = ids_of("embedded", "The end.")
    assert there.to_draft([*said, theirs])[-1] == own
    assert there.to_target(said, [*ids_of("foreign", " Bye"), own, 300]) == [
        *ids_of("embedded", " Bye"),
        theirs,
    ]
    assert there.to_draft([1]) == [], "padding has no meaning here"
    spelled = ids_of("foreign", "<")[0], *ids_of("foreign", "/s>")
    assert own not in there.to_draft(there.to_target([], spelled))


def test_their_beginning_becomes_ours() -> None:
    first = tokenizer("pieces").encode("Once upon a time").ids
    assert (
        text_of("foreign", translation("pieces", "foreign").to_draft(first)) == "Once upon a time"
    )
    once = ids_of("embedded", "Once upon a time")
    assert translation("embedded", "pieces").to_draft(once) == first


@given(
    st.lists(st.tuples(texts, cuts), min_size=1, max_size=6),
    st.sampled_from([" and so it went on", "世界和平", "nospaces", "😀"]),
)
def test_a_target_text_that_grows_and_is_cut_keeps_its_translation(
    steps: list[tuple[str, float]], more: str
) -> None:
    there, target = translation("embedded", "foreign"), TargetText()
    for text, share in steps:
        target = target.cut(round(len(target.tokens) * share))
        while text_of("embedded", list(target.tokens)).endswith(REPLACEMENT):
            target = target.cut(len(target.tokens) - 1)
        target, own = target.extended(ids_of("embedded", text + more * (MIN_TAIL // 4)), there)
        assert text_of("foreign", list(own)) == text_of("embedded", list(target.tokens))
        target, _ = target.extended(ids_of("embedded", more), there)
        assert len(target.tokens) - target.settled <= 4 * MIN_TAIL
