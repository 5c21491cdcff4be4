"""The call that carries all sessions of a worker batches messages, outlives connections, and keeps
sessions apart.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from tandem.orchestrator.links import link as module
from tandem.orchestrator.links.relays import drafter_link, verifier_link
from tandem.protos.errors import Busy, Internal
from tandem.protos.streams import EncodedProposal, Proposal
from tandem.protos.transport import heartbeat, rpc, status
from tandem.v1 import common_pb2, verifier_pb2
from tandem.v1.common_pb2 import Closing
from tests.services.peer import (
    HASTY,
    PATIENT,
    SESSION,
    Peer,
    Subscriber,
    commits,
    linked,
    linked_to,
    opening,
    served,
)
from tests.waiting import LIMIT, until

HOST = "127.0.0.1"


async def test_what_is_said_in_one_turn_of_the_loop_leaves_in_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # heartbeats do not send anything by themselves
    monkeypatch.setattr(heartbeat, "SECONDS", LIMIT)
    peer = Peer()
    async with served(peer) as address, linked_to(address) as (link, user):
        before = len(peer.messages)
        for stream in range(1, 33):
            link.open(stream, opening(), user)
            link.send(stream, Proposal(1))
        await until(lambda: len(peer.sent("proposals")) == 32)
        assert len(peer.messages) == before + 1
        assert len(peer.sent("open")) == 32


async def test_large_openings_travel_apart_and_no_message_is_too_large() -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        for stream in range(1, 9):
            link.open(stream, opening(200_000), user)
        await until(lambda: len(peer.sent("open")) == 8)
        assert max(message.ByteSize() for message in peer.messages) < rpc.MAX_MESSAGE_BYTES
        assert [each.stream for each in peer.sent("open")] == list(range(1, 9))


async def test_everybody_gets_what_is_his_and_nothing_of_what_he_dropped() -> None:
    peer = Peer()
    async with linked(peer) as (link, first):
        second = Subscriber()
        link.open(1, opening(), first)
        link.open(2, opening(), second)
        link.open(3, opening(), first)
        link.drop(1)
        refusal = common_pb2.Failure(stream=2, status=status.pack(Busy("full")))
        said = commits((1, 10), (2, 20), (3, 30), (4, 40))
        said.failures.append(refusal)
        peer.say.put_nowait(said)
        peer.say.put_nowait(commits((2, 21), (3, 31)))
        await until(lambda: [31] in first.reported)
        assert first.reported == [[30], [31]]
        assert second.reported == [[20], Busy], "a stream that failed is over"


async def test_one_users_bug_is_not_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        broken = Subscriber()
        broken.receive = lambda item: broken.reported[item.tokens[0]]  # type: ignore[method-assign]
        link.open(1, opening(), broken)
        link.open(2, opening(), user)
        peer.say.put_nowait(commits((1, 9), (2, 20)))
        await until(lambda: user.reported)
        assert (user.reported, broken.reported) == ([[20]], [Internal])
        assert peer.calls == 1


async def test_a_service_that_comes_back_is_opened_again_and_told_what_was_closed() -> None:
    peer, second, port = Peer(), Peer(), rpc.free_port(HOST)
    scope = AsyncExitStack()
    async with served(peer, port) as address:
        link, user = await scope.enter_async_context(linked_to(address))
        link.open(1, opening(), user)
        await until(lambda: peer.sent("open"))
    await until(lambda: not link.connected)
    link.open(2, opening(), user)
    link.close(SESSION, 7)
    async with served(second, port):
        await until(lambda: link.connected and second.sent("closings"))
        assert user.reported == ["lost", "connected"]
        assert second.sent("closings") == [Closing(session_id=SESSION, turn=7)]
        assert not second.sent("open"), "that is its users' affair"
        await until(lambda: not link._closing)
        await scope.aclose()


async def test_a_peer_that_falls_silent_is_lost_and_called_again() -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        peer.mute, heartbeat.MAX_MISSED = True, HASTY
        await until(lambda: user.reported == ["lost"])
        assert not link.connected
        await until(lambda: peer.calls > 1)
        peer.mute, heartbeat.MAX_MISSED = False, PATIENT
        await until(lambda: user.reported == ["lost", "connected"])


async def test_a_service_that_ends_every_call_is_called_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Peer()

    def answer(request: object) -> None:
        peer.say.put_nowait(verifier_pb2.DecodeResponse())

    pauses: list[float] = []

    class Chance:
        """Replaces the random part of pauses; the chosen value makes them take no time."""

        def __rmul__(self, pause: float) -> float:
            pauses.append(pause)
            return 0.0

    peer.answer = answer
    # the link is called again sooner
    monkeypatch.setattr(module, "BACK_OFF_SECONDS", (LIMIT / 8, LIMIT))
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda least, most: Chance()))
    async with served(peer) as address, rpc.connect(address) as channel, verifier_link(channel):
        await until(lambda: len(pauses) > 4)
    assert pauses[:5] == [LIMIT / 8, LIMIT / 4, LIMIT / 2, LIMIT, LIMIT]


async def test_who_leaves_first_says_what_is_to_be_said() -> None:
    peer = Peer()
    async with linked(peer) as (link, _):
        for number in range(100):
            link.close(bytes([number]), number)
    assert [(each.session_id, each.turn) for each in peer.sent("closings")] == [
        (bytes([number]), number) for number in range(100)
    ]


async def test_a_drafter_is_told_what_proposals_are_good_for() -> None:
    verifier, drafter = Peer(lambda _: verifier_pb2.DecodeResponse(price=0.125)), Peer()
    async with (
        served(drafter) as address,
        rpc.connect(address) as channel,
        linked(verifier) as (decoding, _),
        drafter_link(channel, decoding),
    ):
        await until(lambda: any(message.conditions.price == 0.125 for message in drafter.messages))


async def test_a_bug_in_a_subscriber_that_is_told_of_a_loss_does_not_end_the_link(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    peer = Peer()
    async with linked(peer) as (link, broken):
        user = Subscriber()
        broken.lost = fail  # type: ignore[method-assign]
        link.subscribe(user)
        peer.mute, heartbeat.MAX_MISSED = True, HASTY
        await until(lambda: user.reported == ["lost"])
        peer.mute, heartbeat.MAX_MISSED = False, PATIENT
        await until(lambda: user.reported == ["lost", "connected"])
        assert broken.reported == [Internal, "connected"]


async def test_a_link_whose_own_work_fails_ends_its_scope() -> None:
    def broken(request: object) -> None:
        raise SystemError("a bug")

    with pytest.raises(SystemError):
        async with linked(Peer()) as (link, _):
            link._on_lost = lambda: broken(None)  # type: ignore[method-assign]
            link.complete = broken
            await asyncio.Event().wait()


async def test_proposals_that_are_passed_on_are_dropped_when_the_verifier_reads_too_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drafter that sends too much loses proposals but takes no memory, and an awaited proposal
    arrives.
    """
    monkeypatch.setattr(module, "MAX_PROPOSALS", 10)
    peer = Peer()
    async with linked(peer) as (link, user):
        link.open(1, opening(), user)
        for number in range(50):
            message = common_pb2.Proposal(behind=number)
            link.send(1, EncodedProposal(number, message.ByteSize(), message))
        message = common_pb2.Proposal(behind=98)
        link.send(1, EncodedProposal(98, message.ByteSize(), message, awaited=True))
        link.send(1, Proposal(99))
        await until(lambda: any(each.behind == 99 for each in peer.sent("proposals")))
        assert [each.behind for each in peer.sent("proposals")][-2:] == [98, 99]
        assert len(peer.sent("proposals")) == 12
        assert user.reported == []


async def test_a_service_that_does_not_read_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 20)
    peer = Peer()
    async with linked(peer) as (link, user):
        for stream in range(1, 30):
            link.open(stream, opening(), user)
        await until(lambda: user.reported == ["lost", "connected"])
        assert peer.calls == 2


async def test_after_a_services_last_message_its_call_ends_and_all_it_sent_has_arrived() -> None:
    peer = Peer()
    async with linked(peer) as (link, user):
        link.open(1, opening(), user)
        for token in range(20):
            link.send(1, Proposal(token))
            peer.say.put_nowait(commits((1, token)))
        peer.say.put_nowait(verifier_pb2.DecodeResponse(last=True))
        await until(lambda: "lost" in user.reported)
        assert user.reported[:21] == [*([token] for token in range(20)), "lost"]
        await until(lambda: peer.calls == 2)
