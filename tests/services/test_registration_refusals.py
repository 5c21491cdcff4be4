"""What a front end refuses of drafters that register, and what that costs the others: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from grpc import aio

from tandem.orchestrator.fleet import registered
from tandem.orchestrator.fleet import registration as module
from tandem.orchestrator.fleet.registration import route
from tandem.protos.errors import IncompatibleModels, InvalidRequest
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.wire.registration import (
    CALL,
    MAX_BYTES,
    TOKEN,
    decode_registration,
    encode_registration,
)
from tandem.v1 import drafter_pb2, drafter_pb2_grpc, registration_pb2
from tests.services.peer import HASTY
from tests.services.registering import (
    KEY,
    MODEL,
    SECRET,
    drafting,
    front_end,
    linking,
    registering,
)
from tests.waiting import until

REGISTER = "/tandem.v1.RegistrationService/Register"
CARRY = "/tandem.v1.RegistrationService/Carry"


async def refusal(call: Any) -> str:
    """Why a call was refused."""
    with pytest.raises(Exception) as refused:
        async for _ in call:
            pass
    return f"{refused.value.code().name}: {refused.value.details()}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"token": "another"}, f"UNAUTHENTICATED: {TOKEN} is not the registration token"),
        ({"token": ""}, "UNAUTHENTICATED: "),
        (
            {"tokenizer_fingerprint": "other"},
            "FAILED_PRECONDITION: model.tokenizer_fingerprint of a model is 'other', expected",
        ),
        ({"name": "a b"}, "INVALID_ARGUMENT: name is 'a b', which does not match "),
        ({"name": "a@b"}, "INVALID_ARGUMENT: name is 'a@b'"),
        ({"device": "x" * MAX_BYTES}, f"above {MAX_BYTES}"),
        (
            {"device": "cpu\x1b[2J"},
            r"INVALID_ARGUMENT: model.device is 'cpu\x1b[2J', which is not printable",
        ),
    ],
)
async def test_a_drafter_that_may_not_register_gets_the_reason(
    how: dict[str, Any], reason: str
) -> None:
    async with front_end() as front, registering(front, **how) as call:
        assert reason in await refusal(call)
        assert front.events == []


async def test_no_more_drafters_register_than_the_limit() -> None:
    async with front_end() as front, registering(front, name="a"), registering(front, name="b"):
        await front.has(2)
        async with registering(front, name="c") as third:
            assert "RESOURCE_EXHAUSTED: max_registered is 2" in await refusal(third)
        async with registering(front, name="b"):
            await until(lambda: len(front.events) == 4)
            assert len(front.registered) == 2, "it takes its own place"


def test_a_registration_names_its_drafter_and_describes_its_model() -> None:
    message = registration_pb2.RegisterRequest(name="a")
    with pytest.raises(InvalidRequest, match="model is missing"):
        decode_registration(message, MODEL)
    message.model.tokenizer_fingerprint = "other"
    with pytest.raises(IncompatibleModels, match="--speaks"):
        decode_registration(message, MODEL)
    message.model.tokenizer_fingerprint = MODEL.tokenizer_fingerprint
    assert decode_registration(message, MODEL, "a")[0] == "a"
    with pytest.raises(InvalidRequest, match="name is 'a', and was 'b' before"):
        decode_registration(message, MODEL, "b")


@pytest.mark.parametrize(
    "field",
    ["name", "tokenizer_fingerprint", "device", "dtype", "exactness", "kernels", "fingerprint"],
)
def test_a_text_that_could_write_to_a_terminal_is_refused_by_its_field(field: str) -> None:
    message = encode_registration("a", MODEL)
    decode_registration(message, MODEL)
    setattr(message.model, field, "\x1b]0;title\x07")
    with pytest.raises(InvalidRequest, match=rf"^model\.{field} is .*, which is not printable$"):
        decode_registration(message, MODEL)


def unlimited(address: str) -> aio.Channel:
    """A channel that sends what a service must refuse."""
    return aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])


async def nothing_arrives(call: Any) -> bool:
    """Whether a round worker gets no message that it could use, and knows it."""
    with suppress(aio.AioRpcError):
        return await call.read() in (None, aio.EOF)
    return True


async def garbage(size: int) -> AsyncIterator[bytes]:
    yield b"\xff" * size
    await asyncio.Event().wait()


@pytest.mark.parametrize("size", [1000, 10_000_000])
@pytest.mark.parametrize("method", [REGISTER, CARRY])
async def test_garbage_ends_its_own_call_alone(
    size: int, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        front_end() as front,
        registering(front) as other,
        unlimited(front.address) as channel,
    ):
        await front.has(1)
        call: Any = channel.stream_stream(method)
        metadata = ((TOKEN, SECRET), (CALL, "nothing"))
        reason = await refusal(call(garbage(size), metadata=metadata))
        assert reason.startswith(("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
        assert await other.read() and front.registered


@pytest.mark.parametrize("size", [1000, 10_000_000])
async def test_a_drafter_that_answers_with_garbage_costs_its_own_calls(size: int) -> None:
    async with front_end() as front, drafting(front):
        (honest,) = await front.has(1)
        async with (
            registering(front) as hostile,
            unlimited(front.address) as channel,
            linking(honest) as (link, subscriber),
        ):
            _, lying = await front.has(2)
            place, metadata = route(lying, KEY)
            async with rpc.connect(place) as internal:
                stub: Any = drafter_pb2_grpc.DrafterServiceStub(internal)
                call = stub.Guess(metadata=metadata)
                await call.write(drafter_pb2.GuessRequest())
                names: list[str] = []
                while not names:
                    names += (await hostile.read()).calls
                stream: Any = channel.stream_stream(CARRY)
                carrying = stream(garbage(size), metadata=((CALL, names[0]),))
                assert await nothing_arrives(call)
                call.cancel()
                carrying.cancel()
                again = stream(garbage(1), metadata=((CALL, names[0]),))
                assert "names no call" in await refusal(again), "a call is carried once"
                assert link.connected and subscriber.reported == ["connected"]


async def test_a_drafter_that_does_not_carry_a_call_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    async with front_end() as front, registering(front):
        place, metadata = route(*await front.has(1), KEY)
        async with rpc.connect(place) as channel:
            stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
            call = stub.Guess(metadata=metadata)
            assert "UNAVAILABLE: the drafter 'by-hand' does not answer" in await refusal(call)


async def test_a_drafter_carries_so_many_calls_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registered, "MAX_CARRIED", 2)
    async with front_end() as front, registering(front) as drafter:
        place, metadata = route(*await front.has(1), KEY)
        async with rpc.connect(place) as channel:
            stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
            calls = [stub.Guess(metadata=metadata) for _ in range(2)]
            asked: list[str] = []
            while len(asked) < 2:
                asked += (await drafter.read()).calls
            full = "2 calls to the drafter 'by-hand' are carried, the most at once"
            assert full in await refusal(stub.Guess(metadata=metadata))
            calls[0].cancel()
            while len(asked) < 3:
                calls.append(stub.Guess(metadata=metadata))
                asked += (await drafter.read()).calls


async def test_a_drafter_that_is_silent_is_removed() -> None:
    async with front_end() as front, registering(front, silent=True) as call:
        await front.has(1)
        heartbeat.MISSED = HASTY
        await front.has(0)
        assert "UNAVAILABLE: the drafter 'by-hand' was silent" in await refusal(call)
