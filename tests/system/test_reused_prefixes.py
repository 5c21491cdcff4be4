"""A client's requests start from each other's cached beginnings; nobody else's do."""

from __future__ import annotations

import secrets

from tandem.v1 import orchestrator_pb2 as api
from tests.conftest import Tandem

LONG = tuple(5 + 7 * place % 4000 for place in range(200))


async def completed(tandem: Tandem, tail: tuple[int, ...], client: str) -> api.GenerateResponse:
    request = api.GenerateRequest(
        token_ids=api.TokenIds(ids=LONG + tail),
        sampling=api.Sampling(temperature=0),
        stopping=api.Stopping(max_new_tokens=24),
    )
    metadata = (("x-tandem-client", client),) if client else ()
    return await tandem.stub.Generate(request, metadata=metadata)


async def test_a_long_beginning_is_computed_once_per_client(tandem: Tandem) -> None:
    mine, other = secrets.token_hex(8), secrets.token_hex(8)
    first = await completed(tandem, (900, 901), mine)
    again = await completed(tandem, (902,), mine)
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens == len(LONG)
    for stranger in (other, ""):
        alone = await completed(tandem, (902,), stranger)
        assert alone.usage.cached_tokens == 0
        assert alone.text == again.text


async def test_who_does_not_name_himself_shares_with_nobody(tandem: Tandem) -> None:
    for _ in range(2):
        assert (await completed(tandem, (903,), "")).usage.cached_tokens == 0
