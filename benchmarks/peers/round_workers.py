"""Waiting for the round workers on Ray, without which an orchestrator serves already."""

from __future__ import annotations

import asyncio

from tandem import AsyncClient
from tandem.protos.errors import Unusable

WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.1


async def connected(client: AsyncClient, count: int) -> None:
    """Wait until a front end is connected to so many; raises Unusable."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while count != sum(  # noqa: ASYNC110
                each.connected and not each.reserve
                for each in (await client.status()).round_workers
            ):
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        problem = f"{count} round workers on Ray are not connected in {WAIT_SECONDS:.0f} s"
        raise Unusable(problem) from None
