"""Which registering drafters a front end refuses; a refusal costs the other drafters nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio

from tandem.orchestrator.links.relays import proposal_link
from tandem.protos.errors import IncompatibleModels, InvalidRequest
from tandem.protos.transport import heartbeat
from tandem.protos.wire.registration import (
    MAX_BYTES,
    TOKEN,
    decode_registration,
    encode_registration,
    registered_name,
)
from tandem.v1 import registration_pb2
from tests.services.peer import HASTY, Peer, linked
from tests.services.registering import (
    MODEL,
    SECRET,
    Front,
    drafting,
    front_end,
    linking,
    registering,
)
from tests.waiting import until

REGISTER = "/tandem.v1.RegistrationService/Register"


async def refusal(call: Any) -> str:
    """Return why a call was refused."""
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
    """A message that is too large is refused while it is being sent. If gRPC's client cannot send
    the rest before the reason arrives, it reports no reason.
    """
    async with front_end() as front, registering(front, **how) as call:
        given = await refusal(call)
        assert reason in given or (
            "device" in how and given == "INTERNAL: Internal error from Core"
        )
        assert front.events == []


async def test_no_more_drafters_register_than_the_limit() -> None:
    async with front_end() as front, registering(front, name="a"), registering(front, name="b"):
        await front.has(2)
        async with registering(front, name="c") as third:
            assert "RESOURCE_EXHAUSTED: 2 drafters are registered" in await refusal(third)
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
    assert decode_registration(message, MODEL)[0] == "a"


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
    """Return a channel that sends messages which a service must refuse."""
    return aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])


async def garbage(size: int) -> AsyncIterator[bytes]:
    yield b"\xff" * size
    await asyncio.Event().wait()


@pytest.mark.parametrize("size", [1000, 10_000_000])
async def test_garbage_ends_its_own_call_alone(size: int) -> None:
    async with (
        front_end() as front,
        registering(front) as other,
        unlimited(front.address) as channel,
    ):
        await front.has(1)
        call: Any = channel.stream_stream(REGISTER)
        reason = await refusal(call(garbage(size), metadata=((TOKEN, SECRET),)))
        assert reason.startswith(("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
        assert front.registered and not other.done()


@pytest.mark.parametrize("size", [1000, 10_000_000])
async def test_a_registered_drafter_that_sends_garbage_costs_its_own_call(size: int) -> None:
    async def lies(name: str) -> AsyncIterator[bytes]:
        yield encode_registration(name, MODEL).SerializeToString()
        yield b"\xff" * size
        await asyncio.Event().wait()

    async with front_end() as front, drafting(front):
        (honest,) = await front.has(1)
        async with (
            unlimited(front.address) as channel,
            linking(front, honest) as (link, subscriber),
        ):
            call: Any = channel.stream_stream(REGISTER)
            lying = call(lies("liar"), metadata=((TOKEN, SECRET),))
            async with unusable(front, (await front.has(2))[1]):
                await front.has(1)
            lying.cancel()
            assert link.connected and subscriber.reported == ["connected"]


@asynccontextmanager
async def unusable(front: Front, address: str) -> AsyncIterator[None]:
    """Return a link to a drafter that never connects."""
    proposal = front.registry.calling(registered_name(address))
    async with linked(Peer()) as (verifier, _), proposal_link(proposal, verifier) as link:
        yield
        assert not link.connected


async def test_a_drafter_that_is_silent_is_removed() -> None:
    async with front_end() as front, registering(front, silent=True) as call:
        async with unusable(front, *await front.has(1)):
            heartbeat.MAX_MISSED = HASTY
            await front.has(0)
        assert "not registered any more: the drafter was silent" in await refusal(call)
