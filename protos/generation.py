"""What requests that set no options are given, by the makers of their model. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a model's makers set for requests that do not set it themselves; None: nothing. The
    names are those of `generation_config.json`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()


NO_DEFAULTS = GenerationDefaults()
