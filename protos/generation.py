"""A model maker's defaults for the options that a request does not set, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The options that a model's makers set for requests that do not set them. A value of None
    means that the makers set nothing. The names of the fields are those of
    `generation_config.json`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()


NO_DEFAULTS = GenerationDefaults()
