"""A request from Python values: one keyword for every option of the client API."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from tandem.protos.types import SEEDS
from tandem.protos.wire.options import options, put
from tandem.v1 import orchestrator_pb2 as api


def build(prompt: str | Sequence[int], logprobs: int | None, **given: Any) -> api.GenerateRequest:
    """A request that can be sent again: with an id and a seed. Options that are None are absent;
    raises TypeError for an option that there is not, InvalidRequest for one that is no value of its
    field.
    """
    request = api.GenerateRequest(request_id=secrets.token_hex(8), logprobs=logprobs)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    request.sampling.seed = secrets.randbelow(SEEDS)
    known = options()
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")
        if value is not None:
            put(request, name, value)
    return request
