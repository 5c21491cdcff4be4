"""Two tokenizers have one fingerprint exactly if every id means the same token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem import models
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import Likeness, fingerprint, likeness, tokens_by_id

VOCABULARY = {"a": 0, "b": 1, "ab": 2, "世": 3}


def write(
    folder: Path, vocabulary: Any, added: list[dict[str, Any]] | None = None, **more: Any
) -> Path:
    """Write a model directory with this tokenizer."""
    content = {"model": {"vocab": vocabulary, **more}} | (
        {"added_tokens": added} if added is not None else {}
    )
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A tokenizer of four tokens."""
    return write(tmp_path / "plain", VOCABULARY)


def test_the_embedded_pair_fits_together() -> None:
    assert fingerprint(models.TARGET) == fingerprint(models.DRAFT)
    assert len(fingerprint(models.TARGET)) == 16
    assert len(tokens_by_id(models.TARGET)) == 4096


def test_only_the_tokens_and_their_numbers_matter(plain: Path, tmp_path: Path) -> None:
    """The order of the tokens in the file, the way to split text and the kind of the tokenizer do
    not matter.
    """
    turned = write(tmp_path / "turned", dict(reversed(VOCABULARY.items())), merges=["a b"])
    pairs = [[token, -float(index)] for token, index in VOCABULARY.items()]
    unigram = write(tmp_path / "unigram", pairs)
    assert fingerprint(turned) == fingerprint(unigram) == fingerprint(plain)


@pytest.mark.parametrize(
    "other",
    [
        {"a": 0, "b": 1, "ac": 2, "世": 3},
        {"a": 1, "b": 0, "ab": 2, "世": 3},
        {"a": 0, "b": 1, "ab": 2},
        {"a": 0, "b": 1, "ab": 2, "世": 4},
        {"a": 0, "b": 1, "ab": 2, "世": 3, "界": 4},
    ],
)
def test_one_changed_token_changes_the_fingerprint(
    plain: Path, tmp_path: Path, other: dict[str, int]
) -> None:
    assert fingerprint(write(tmp_path / "other", other)) != fingerprint(plain)


def numbered(count: int, **changed: str) -> dict[int, str]:
    """Return a vocabulary of this many tokens; `changed` names other tokens for some ids, as in
    `t7="other"`.
    """
    return {index: changed.get(f"t{index}", f"token {index}") for index in range(count)}


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (numbered(200), Likeness.EQUAL),
        (numbered(201), Likeness.NEARLY),  # one token was added
        (numbered(220), Likeness.NEARLY),
        (numbered(150), Likeness.NEARLY),  # many tokens are missing
        (numbered(200, t7="other", t198="another"), Likeness.NEARLY),
        (numbered(200, t7="other", t8="another", t9="a third"), Likeness.FOREIGN),
        (numbered(150, t7="other", t8="another"), Likeness.FOREIGN),
        ({index + 1: token for index, token in numbered(200).items()}, Likeness.FOREIGN),
    ],
)
def test_vocabularies_are_nearly_equal_if_99_of_100_ids_of_the_smaller_agree(
    draft: dict[int, str], expected: Likeness
) -> None:
    """A fine-tuned model's special tokens are added, or have other names."""
    assert likeness(numbered(200), draft) is likeness(draft, numbered(200)) is expected


def test_another_family_has_a_foreign_tokenizer() -> None:
    assert likeness(tokens_by_id(models.TARGET), tokens_by_id(models.FOREIGN)) is Likeness.FOREIGN


def test_an_added_token_counts_and_wins_over_the_vocabulary(plain: Path, tmp_path: Path) -> None:
    end = {"id": 3, "content": "<end>"}
    replaced = write(tmp_path / "replaced", VOCABULARY, [end])
    assert tokens_by_id(replaced)[3] == "<end>"
    assert fingerprint(replaced) != fingerprint(plain)
    assert fingerprint(write(tmp_path / "none", VOCABULARY, [])) == fingerprint(plain)


def test_a_token_with_a_line_break_is_not_taken_for_two_tokens(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", {"a\n1 b": 0}), write(tmp_path / "two", {"a": 0, "b": 1})
    assert fingerprint(one) != fingerprint(two)


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=f"{tmp_path} has no tokenizer.json"):
        fingerprint(tmp_path)
