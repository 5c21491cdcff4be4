"""Whether a link may use the model of a service: each check returns the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tandem.protos.types import ModelDescription

Fits: TypeAlias = Callable[[ModelDescription], str | None]


def same_model(identity: str = "") -> Fits:
    """The model with this identity, however it is computed; without one, the first that is seen."""
    expected = identity

    def check(model: ModelDescription) -> str | None:
        nonlocal expected
        expected = expected or model.identity
        if model.identity == expected:
            return None
        return f"{model.name} is another model ({model.identity}, expected {expected})"

    return check


def same_tokenizer(fingerprint: str = "") -> Fits:
    """A model with the target's tokens; without their fingerprint, any model."""

    def check(model: ModelDescription) -> str | None:
        if fingerprint in ("", model.tokenizer_fingerprint):
            return None
        prints = f"{model.tokenizer_fingerprint}, expected {fingerprint}"
        return f"{model.name} has another tokenizer ({prints})"

    return check
