"""A session belongs to the peer that opened it, even if others know its id, epoch and length."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.protos.errors import SessionMiss, StaleTurn
from tandem.protos.streams import Decoding
from tandem.protos.types import LAST_TURN, Context
from tandem.v1.common_pb2 import Closing
from tandem.verifier_service import service as verifier_service
from tests.certificates import made, settings, tls_of
from tests.services.caller import BEGIN, UNTIL, calling, decoding, reported

ATTEMPTS, AT_ONCE = 1_000, 250


@dataclass
class Held:
    """A session that a peer has open at a verifier."""

    opening: Decoding
    text: tuple[int, ...]
    epoch: int

    def on(self, turn: int, session_id: bytes | None = None, **other: int) -> Decoding:
        """Return an opening that builds on cached tokens, as only their owner should be able to."""
        known = self.opening.context
        fields = {"base": known.length, "epoch": self.epoch} | other
        context = Context(
            known.session_id if session_id is None else session_id,
            turn,
            fields["base"],
            self.text[:1],
            fields["epoch"],
        )
        return replace(self.opening, context=context, until=UNTIL + 1)


@pytest.fixture(scope="module")
async def verifier(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Path]]:
    folder = made(tmp_path_factory.mktemp("certificates"), "other")
    config = ModelServiceConfig(
        model=models.TARGET,
        threads=1,
        allowed_peers="orchestrator, other",
        **settings(folder, "verifier"),
    )
    async with verifier_service.serving(config, CollectorRegistry()) as address:
        yield address, folder


async def test_a_thousand_attempts_take_no_session_from_its_peer(
    verifier: tuple[str, Path],
) -> None:
    address, folder = verifier
    chance = random.Random(7)
    async with (
        calling(address, tls=tls_of(folder, "orchestrator")) as owner,
        calling(address, tls=tls_of(folder, "other")) as thief,
    ):
        opening = decoding()
        commits = await (await owner.open(opening)).commits(UNTIL)
        held = Held(opening, reported(commits), commits[0].epoch)
        for _ in range(ATTEMPTS // AT_ONCE):
            openings = [
                held.on(
                    chance.randrange(2, LAST_TURN),
                    base=chance.choice((BEGIN, chance.randrange(1, UNTIL))),
                    epoch=chance.choice((held.epoch, chance.randrange(1, 1 << 32))),
                )
                for _ in range(AT_ONCE)
            ]
            for stream in await thief.open(*openings):
                # an attempt may be stale because of another one
                with pytest.raises((SessionMiss, StaleTurn)):
                    await stream.take()
            turn = chance.randrange(2, LAST_TURN)
            await thief.send(closings=[Closing(session_id=opening.context.session_id, turn=turn)])
        for session_id in (opening.context.session_id, chance.randbytes(16)):
            stream = await thief.open(held.on(LAST_TURN, session_id))
            with pytest.raises(SessionMiss, match=f"^base {BEGIN} is not cached here$"):
                await stream.take()
        commit = await (await owner.open(held.on(2))).take()
        assert commit.start == BEGIN + 1 and commit.epoch == held.epoch, "the owner goes on"


async def test_a_peer_does_not_end_another_s_stream(verifier: tuple[str, Path]) -> None:
    address, folder = verifier
    async with (
        calling(address, tls=tls_of(folder, "orchestrator")) as owner,
        calling(address, tls=tls_of(folder, "other")) as thief,
    ):
        opening = decoding(until=200)
        stream = await owner.open(opening)
        begun = await stream.commits(BEGIN + 5)
        newer = replace(opening, context=replace(opening.context, turn=LAST_TURN))
        assert reported(await (await thief.open(newer)).commits(UNTIL)), (
            "it has a session of its own"
        )
        await thief.close(newer)
        rest = await stream.commits(200)
        text = reported([*begun, *rest])
        assert len(text) == 200 - BEGIN
