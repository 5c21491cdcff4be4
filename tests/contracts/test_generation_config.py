"""`generation_config.json` as models have it: which settings become defaults, and which are
reported as unused.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tandem import models
from tandem.engine.model.generation import FILE, LISTS, NUMBERS, generation_defaults
from tandem.protos.generation import NO_DEFAULTS, GenerationDefaults

VOCABULARY = 100


def read(folder: Path, **given: Any) -> tuple[GenerationDefaults, list[str]]:
    """Return what is read from a file with these settings."""
    (folder / FILE).write_text(json.dumps(given), encoding="utf-8")
    return generation_defaults(folder, VOCABULARY)


def test_what_qwen3_sets_are_its_defaults(tmp_path: Path) -> None:
    """As in vLLM, `do_sample` decides nothing: a request is greedy at temperature 0."""
    for sampling in (True, False):
        found = read(
            tmp_path,
            bos_token_id=9,
            do_sample=sampling,
            eos_token_id=[5, 3],
            pad_token_id=3,
            temperature=0.6,
            top_k=20,
            top_p=0.95,
            transformers_version="4.51.0",
        )
        assert found == (GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95), [])


def test_penalty_and_suppressed_tokens_are_defaults_too(tmp_path: Path) -> None:
    found, unused = read(
        tmp_path,
        repetition_penalty=1.05,
        min_p=0.1,
        suppress_tokens=[7, 3, 7],
        begin_suppress_tokens=[0],
    )
    assert asdict(found) == asdict(NO_DEFAULTS) | {
        "repetition_penalty": 1.05,
        "min_p": 0.1,
        "suppress_tokens": (3, 7),
        "begin_suppress_tokens": (0,),
    }
    assert not unused
    assert asdict(NO_DEFAULTS).keys() == {*NUMBERS, *LISTS}


def test_what_would_change_a_text_and_is_not_there_is_named(tmp_path: Path) -> None:
    found, unused = read(
        tmp_path, no_repeat_ngram_size=3, bad_words_ids=[[5]], forced_bos_token_id=2, num_beams=4
    )
    assert found == NO_DEFAULTS
    assert unused == ["bad_words_ids", "forced_bos_token_id", "no_repeat_ngram_size", "num_beams"]


def test_what_changes_nothing_is_not_named(tmp_path: Path) -> None:
    assert read(
        tmp_path,
        no_repeat_ngram_size=0,
        num_beams=1,
        typical_p=1.0,
        bad_words_ids=None,
        sequence_bias={},
        min_length=0,
        max_length=2048,
        use_cache=True,
    ) == (NO_DEFAULTS, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "0.6"),
        ("temperature", True),
        ("top_p", 0),
        ("top_k", 2.5),
        ("top_k", -1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("suppress_tokens", [VOCABULARY]),
        ("suppress_tokens", [-1]),
        ("begin_suppress_tokens", ["a"]),
    ],
)
def test_a_value_that_no_request_may_have_is_named_and_not_taken(
    tmp_path: Path, name: str, value: Any
) -> None:
    assert read(tmp_path, **{name: value}) == (NO_DEFAULTS, [name])


def test_a_model_without_such_a_file_has_no_defaults(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path, VOCABULARY) == (NO_DEFAULTS, [])
    (tmp_path / "model.gguf").touch()
    assert generation_defaults(tmp_path / "model.gguf", VOCABULARY) == (NO_DEFAULTS, [])
    (tmp_path / FILE).write_text("[]")
    assert generation_defaults(tmp_path, VOCABULARY) == (NO_DEFAULTS, [])


def test_the_embedded_pair_has_none() -> None:
    for folder in (models.TARGET, models.DRAFT, models.FOREIGN):
        assert generation_defaults(folder, VOCABULARY) == (NO_DEFAULTS, [])
