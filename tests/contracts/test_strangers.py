"""A caller that is not authorised costs a server little: the server reads nothing of a message
before it knows the caller.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc import aio

from tandem.protos import errors
from tandem.protos.transport import interceptor, rpc
from tests.contracts.test_status import CLIENT_API, VERIFIER, Refusing


class Stranger:
    """A guard that refuses everybody."""

    def check(self, method: str, context: Any) -> None:
        raise errors.Unauthenticated("a token is needed")


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_stream"])
async def test_who_may_not_call_is_refused_before_a_message_is_read(kind: str) -> None:
    """The unauthorised caller begins a message and never ends it; here a stream that sends nothing
    stands for that.
    """
    paths = {"unary_unary": "Generate", "unary_stream": "StreamGenerate"}
    service = CLIENT_API if kind in paths else VERIFIER
    security = rpc.Security(guard=Stranger())
    async with (
        rpc.serving("127.0.0.1", 0, Refusing(None), security=security) as address,
        rpc.connect(address) as channel,
    ):
        call: Any = channel.stream_stream(f"/{service}/{paths.get(kind, 'Decode')}")()
        with pytest.raises(aio.AioRpcError) as failure:
            await call.read()
        assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_that_sends_no_message_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "MAX_CONCURRENT_CALLS", 1)
    served = rpc.serving("127.0.0.1", 0, Refusing(errors.Internal("asked")))
    async with served as address, rpc.connect(address) as channel:
        silent: Any = channel.stream_stream(f"/{CLIENT_API}/Generate")()
        await silent.wait_for_connection()
        honest: Any = channel.unary_unary(f"/{VERIFIER}/DescribeVerifier")
        for _ in range(3):
            with pytest.raises(aio.AioRpcError) as failure:
                await honest(b"")
            assert failure.value.details() == "asked"
        silent.cancel()
