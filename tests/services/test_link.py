"""The call that carries all sessions of a worker: it batches, survives, keeps its users apart."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.workers import link as module
from orchestrator.workers.worker import drafting, verifying
from protos.errors import Busy, Internal
from protos.tandem.v1 import common_pb2, verifier_pb2
from protos.transport import rpc, status
from tests.services.peer import SESSION, Peer, User, facts, linked, opening, served, until


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)


async def test_what_is_said_in_one_turn_of_the_loop_leaves_in_one_message() -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        before = len(peer.messages)
        for stream in range(1, 33):
            link.open(opening(stream), user)
            link.send("guesses", common_pb2.Guess(stream=stream))
        await until(lambda: len(peer.sent("guesses")) == 32)
        assert len(peer.messages) == before + 1
        assert len(peer.sent("open")) == 32


async def test_large_openings_travel_apart_and_no_message_is_too_large() -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        for stream in range(1, 9):
            link.open(opening(stream, 200_000), user)
        await until(lambda: len(peer.sent("open")) == 8)
        assert max(message.ByteSize() for message in peer.messages) < rpc.MAX_MESSAGE_BYTES
        assert [each.stream for each in peer.sent("open")] == list(range(1, 9))


async def test_everybody_gets_what_is_his_and_nothing_of_what_he_dropped() -> None:
    peer = Peer()
    async with linked(peer) as (link, first):
        second = User()
        link.open(opening(1), first)
        link.open(opening(2), second)
        link.open(opening(3), first)
        link.drop(1)
        refusal = common_pb2.Failure(stream=2, status=status.pack(Busy("full")))
        said = facts((1, 10), (2, 20), (3, 30), (4, 40))
        said.failures.append(refusal)
        peer.say.put_nowait(said)
        peer.say.put_nowait(facts((2, 21), (3, 31)))
        await until(lambda: [31] in first.told)
        assert first.told == [[30], [31]]
        assert second.told == [[20], Busy], "a stream that failed is over"


async def test_one_users_bug_is_not_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        broken = User()
        broken.receive = lambda item: broken.told[item.tokens[0]]  # type: ignore[method-assign]
        link.open(opening(1), broken)
        link.open(opening(2), user)
        peer.say.put_nowait(facts((1, 9), (2, 20)))
        await until(lambda: user.told)
        assert (user.told, broken.told) == ([[20]], [Internal])
        assert peer.calls == 1


async def test_a_service_that_comes_back_is_opened_again_and_told_what_was_closed(
    hasty: None,
) -> None:
    peer, second, user = Peer(), Peer(), User()
    peer.answer = lambda request: verifier_pb2.DecodeResponse()
    async with served(peer) as address:
        channel = rpc.connect(address)
        link = await verifying(channel).__aenter__()
        link.join(user)
        await until(lambda: link.connected)
        link.open(opening(1), user)
        await until(lambda: peer.sent("open"))
    await until(lambda: not link.connected)
    link.open(opening(2), user)
    link.close(SESSION)
    async with served(second, int(address.rpartition(":")[2])):
        await until(lambda: link.connected and second.sent("close"))
        assert user.told == ["connected", "lost", "connected"]
        assert second.sent("close") == [SESSION]
        assert not second.sent("open"), "that is its users' affair"
        await until(lambda: not link._closing)
        await link.__aexit__()
    await channel.close()


async def test_a_peer_that_falls_silent_is_lost_and_called_again(hasty: None) -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        peer.mute = True
        await until(lambda: user.told == ["lost"])
        assert not link.connected
        await until(lambda: peer.calls > 1)
        peer.mute = False
        await until(lambda: user.told == ["lost", "connected"])


async def test_a_peer_that_speaks_is_kept_and_its_distance_known(hasty: None) -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        await asyncio.sleep(0.4)
        assert (peer.calls, user.told) == (1, [])
        assert 0 < link.round_trip < 0.2


async def test_who_leaves_first_says_what_is_to_be_said() -> None:
    peer = Peer()
    async with linked(peer) as (link, _):
        for number in range(100):
            link.close(bytes([number]))
    assert peer.sent("close") == [bytes([number]) for number in range(100)]


async def test_a_drafter_is_told_what_guesses_are_good_for() -> None:
    verifier, drafter = Peer(lambda _: verifier_pb2.DecodeResponse(price=0.125)), Peer()
    async with (
        served(drafter) as address,
        rpc.connect(address) as channel,
        linked(verifier) as (decoding, _),
        drafting(channel, decoding),
    ):
        await until(lambda: any(message.conditions.price == 0.125 for message in drafter.messages))
