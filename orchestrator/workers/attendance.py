"""One call to a round worker for as long as it is used: shows whether it still answers, and reports
to it which replicas there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import grpc
import structlog
from grpc import aio

from tandem.orchestrator.fleet.membership import Membership
from tandem.protos.service.tasks import first_done
from tandem.protos.transport import heartbeat, status
from tandem.protos.wire.rounds import encode_attend
from tandem.v1 import rounds_pb2_grpc

log = structlog.get_logger()


async def attend(
    channel: aio.Channel,
    metadata: Sequence[tuple[str, str]],
    membership: Membership,
    answering: Callable[[], Awaitable[None]],
) -> None:
    """Return when the worker is lost; `answering` is called when its first message arrives."""
    call = rounds_pb2_grpc.RoundWorkerServiceStub(channel).Attend(metadata=metadata)
    received = 0

    async def write() -> None:
        known = None
        while True:
            changed = membership.now != known
            known = membership.now
            await call.write(encode_attend(known if changed else None))
            with suppress(TimeoutError):
                async with asyncio.timeout(heartbeat.SECONDS):
                    await membership.other_than(known)

    async def read() -> None:
        nonlocal received
        async for _ in call:
            received += 1
            if received == 1:
                await answering()

    try:
        await first_done(write(), read(), heartbeat.until_silent(lambda: received))
    except grpc.aio.AioRpcError as failure:
        log.warning("a round worker is lost", problem=str(status.decode(failure)))
    except asyncio.InvalidStateError:  # it was lost before it could be written to
        pass
    finally:
        call.cancel()
