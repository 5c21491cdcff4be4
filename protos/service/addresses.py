"""Settings that are an address or several, with commas or as a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator

from tandem.protos.address import check_source, split


def _listed(check: Callable[[str], object]) -> BeforeValidator:
    """A list, as in a YAML file, or text with commas; `check` raises ValueError."""

    def listed(given: object) -> object:
        given = given.split(",") if given and isinstance(given, str) else given or []
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            return given
        names = [each.strip() for each in given]
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("has an address that is empty or there twice")
        for name in names:
            check(name)
        return ",".join(names)

    return BeforeValidator(listed)


Addresses = Annotated[str, _listed(split)]
Sources = Annotated[str, _listed(check_source)]
