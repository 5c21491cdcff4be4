"""A drafter at the end of a slow line: a proposal never waits long there."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from tandem.benchmarks.peers.delay import State
from tandem.benchmarks.peers.delay import linked as proxied
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.models import DRAFT
from tandem.orchestrator.links.relays import drafter_link
from tandem.protos.service.drain import Drain
from tandem.protos.streams import Commit, Drafting
from tandem.protos.transport import rpc
from tandem.protos.types import Context, DraftShape, SamplingParams
from tests.services.peer import Peer, Subscriber, linked
from tests.waiting import LIMIT, until

RATE = 50_000  # bits per second
PROMPT = (5, 6, 7)
SESSIONS, COMMITS = 4, 60
WAITING = 2.0  # seconds of line time that may wait; without a bound they are four, and grow


class Reader(Subscriber):
    """Counts proposals."""

    def receive(self, item: object) -> None:
        self.reported.append("proposal")


async def test_what_a_drafter_sends_does_not_pile_up_on_a_slow_line() -> None:
    config = ModelServiceConfig(model=DRAFT, threads=1, draft_cost=0.0)
    shape = DraftShape(levels=4, branches=2, nodes=8)
    async with (
        drafter_service.serving(config, CollectorRegistry(), Drain(LIMIT)) as address,
        proxied(address) as proxy,
        rpc.connect(f"127.0.0.1:{proxy.port}") as channel,
        linked(Peer()) as (verifier, _),
        drafter_link(channel, verifier) as link,
    ):
        reader, loop, most = Reader(), asyncio.get_running_loop(), 0.0
        link.subscribe(reader)
        await until(lambda: link.connected)
        await proxy.become(State(round_trip=0.08, rate=RATE))
        for stream in range(1, SESSIONS + 1):
            context = Context(bytes([stream]) * 16, 1, 0, PROMPT)
            link.open(stream, Drafting(context, SamplingParams(), shape), reader)
        for number in range(COMMITS):
            clock = link.clock
            for stream in range(1, SESSIONS + 1):
                link.send(stream, Commit(len(PROMPT) + number, (5 + number,)))
            await until(lambda clock=clock: link.clock != clock, "the drafter answers")
            most = max(most, proxy.busy[True] - loop.time())
        assert most < WAITING
        assert reader.reported.count("proposal") > SESSIONS
        assert "lost" not in reader.reported
