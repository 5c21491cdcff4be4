"""How much memory the bodies of requests may take at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.requests import Request

from tandem.orchestrator.http.body import MAX_BYTES, BodyReader, BodyTooLarge
from tandem.protos.errors import Busy, InvalidRequest


def request(*pieces: bytes) -> Request:
    """Return a request whose body comes in pieces."""

    async def come() -> AsyncIterator[dict[str, Any]]:
        for piece in pieces:
            yield {"type": "http.request", "body": piece, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    coming = come()
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    return Request(scope, lambda: anext(coming))


async def test_bodies_have_so_many_bytes_together_and_what_has_ended_has_none() -> None:
    bodies = BodyReader(max_bytes=20)
    async with AsyncExitStack() as scope:
        for owner in "abcd":
            body = await scope.enter_async_context(bodies.read(request(b"12", b"345"), owner))
            assert body == b"12345"
        problem = "^request bodies of all clients have 21 bytes, above 20$"
        with pytest.raises(Busy, match=problem) as refused:
            async with bodies.read(request(b"1"), "e"):
                pass
        assert refused.value.retry_after > 0 and bodies.held.total() == 20
    assert not bodies.held


async def test_one_client_leaves_room_for_others() -> None:
    bodies = BodyReader(max_bytes=20)
    problem = "^request bodies of this client have 6 bytes, above its share of 5$"
    async with bodies.read(request(b"1234"), "a"):
        with pytest.raises(Busy, match=problem):
            async with bodies.read(request(b"12"), "a"):
                pass
        async with bodies.read(request(b"12"), "b"):
            assert bodies.held == {"a": 4, "b": 2}


@pytest.mark.parametrize("left", [ConnectionError, InvalidRequest])
async def test_whatever_ends_a_body_it_is_held_no_more(left: type[Exception]) -> None:
    bodies = BodyReader()
    with pytest.raises(BodyTooLarge):
        async with bodies.read(request(b"x" * MAX_BYTES, b"x"), "a"):
            pass
    with pytest.raises(left):
        async with bodies.read(request(b"x"), "a"):
            raise left("it was no good")
    assert not bodies.held
