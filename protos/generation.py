"""The default values of sampling options that a model's makers recommend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Default values of sampling options, as recommended by a model's makers. These values apply to
    requests that do not set the options themselves. A value of None means that the makers recommend
    nothing. The fields have the same names as in `generation_config.json`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()


NO_DEFAULTS = GenerationDefaults()
