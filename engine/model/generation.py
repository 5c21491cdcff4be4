"""Read the default sampling parameters that the authors of a model provide in
`generation_config.json`.

Only keys that `generation_config.json` contains are used. The defaults that `transformers` has for
other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.protos.generation import GenerationDefaults
from tandem.protos.types import SamplingParams
from tandem.protos.wire.sampling import problems

FILE = "generation_config.json"
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
LISTS = ("suppress_tokens", "begin_suppress_tokens")
OFF: Mapping[str, tuple[object, ...]] = {
    "bad_words_ids": (),
    "constraints": (),
    "diversity_penalty": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_decoder_ids": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}
"""The settings of the file that would change a text but are not supported, each with the values
that have no effect. For every setting, null, an empty list and an empty object have no effect
either.
"""


def generation_defaults(folder: Path, vocab_size: int) -> tuple[GenerationDefaults, list[str]]:
    """Return a model's default sampling parameters for requests. Also return the names of the
    settings that are ignored because they are invalid or not supported. A GGUF file has no default
    sampling parameters.
    """
    given = _given(folder)
    asked = [name for name in (*NUMBERS, *LISTS) if given.get(name) is not None]
    found: dict[str, Any] = {name: _usable(name, given[name], vocab_size) for name in asked}
    wrong = [name for name in asked if found[name] is None]
    defaults = {name: found[name] for name in asked if name not in wrong}
    return GenerationDefaults(**defaults), [*wrong, *_without_effect(given)]


def _given(folder: Path) -> dict[str, Any]:
    """Return the settings in the `generation_config.json` of a model directory; empty if it cannot
    be read.
    """
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    # without a file, there are no settings; an unreadable file is reported by the loader
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _usable(name: str, value: object, vocab_size: int) -> float | tuple[int, ...] | None:
    """Return the value of a setting in the form that requests use, or None if the value is invalid
    in a request.
    """
    if name in LISTS:
        ids = value if isinstance(value, list) else [value]
        fitting = all(type(each) is int and 0 <= each < vocab_size for each in ids)
        return tuple(sorted({*ids})) if fitting else None
    kinds = (int,) if name == "top_k" else (int, float)
    if type(value) not in kinds or (name == "top_k" and value < 0):  # type: ignore[operator]
        return None
    number: Any = value
    return None if list(problems(replace(SamplingParams(), **{name: number}))) else number


def _without_effect(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the settings that would change a text, but are not supported."""
    for name, off in OFF.items():
        value = given.get(name)
        if value is not None and value not in (*off, [], {}):
            yield name
