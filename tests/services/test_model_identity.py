"""A service is never used if its model differs from the expected one, wherever the service is found
and whenever the model changes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.fingerprint import model_fingerprint, weights_fingerprint
from tandem.engine.loading import load_model, runner_of
from tandem.orchestrator.links.link import Link
from tandem.orchestrator.links.relays import Relays, drafter_link, verifier_link
from tandem.orchestrator.rounds import relay
from tandem.protos.errors import Unavailable
from tandem.protos.transport import rpc
from tandem.protos.types import DraftShape
from tandem.v1 import common_pb2, drafter_pb2, verifier_pb2
from tests.services.peer import Peer, patient, served
from tests.services.test_relays import REQUEST, counting
from tests.waiting import until

TARGET, OTHER = "aaaa", "bbbb"


@pytest.fixture(autouse=True)
def nobody_is_lost_by_silence() -> Iterator[None]:
    with patient():
        yield


def holding(weights: str, fingerprint: str = "") -> Peer:
    """Return a verifier that describes its model."""
    model = common_pb2.ModelDescription(
        name="it", weights_fingerprint=weights, fingerprint=fingerprint or weights
    )
    return Peer(lambda _: verifier_pb2.DecodeResponse(model=model))


def drafting(tokenizer: str) -> Peer:
    """Return a drafter that describes its tokenizer."""
    model = common_pb2.ModelDescription(name="it", tokenizer_fingerprint=tokenizer)
    return Peer(lambda _: drafter_pb2.ProposeResponse(model=model))


async def replaced(
    scope: AsyncExitStack, fingerprint: str, expected: str = ""
) -> tuple[Link[Any, Any], Peer]:
    """Return the link to a verifier after one with this fingerprint has taken its place."""
    port = rpc.free_port("127.0.0.1")
    async with served(holding(TARGET), port) as address:
        channel = await scope.enter_async_context(rpc.connect(address))
        link = await scope.enter_async_context(verifier_link(channel, expected))
        await until(lambda: link.connected)
    await until(lambda: not link.connected)
    peer = holding(fingerprint)
    await scope.enter_async_context(served(peer, port))
    return link, peer


@pytest.mark.parametrize("expected", ["", TARGET], ids=["first seen", "passed down"])
async def test_a_verifier_replaced_by_another_model_gets_no_session(
    expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "VERIFIER_LOST_SECONDS", 0.1)
    async with AsyncExitStack() as scope:
        link, other = await replaced(scope, OTHER, expected)
        await until(lambda: link.problem)
        nowhere = await scope.enter_async_context(rpc.connect("127.0.0.1:1"))
        relays = Relays(link, drafter_link(nowhere, link))
        with pytest.raises(Unavailable, match="another model"):
            await anext(relays.run(REQUEST))
        assert not (link.connected or other.sent("open"))


async def test_that_it_is_another_model_is_known_between_two_calls_too() -> None:
    async with AsyncExitStack() as scope:
        link, other = await replaced(scope, OTHER, TARGET)
        await until(lambda: link.problem)
        calls = other.calls
        other.say.put_nowait(None)  # ends the call
        while other.calls == calls:
            assert link.problem
            await asyncio.sleep(0)


async def test_the_same_model_restarted_is_used_again() -> None:
    async with AsyncExitStack() as scope:
        link, _ = await replaced(scope, TARGET)
        await until(lambda: link.connected)
        assert not link.problem


async def test_the_same_model_with_another_arithmetic_is_used_and_forms_another_group() -> None:
    async with AsyncExitStack() as scope:
        groups = []
        for fingerprint in ("1", "2"):
            where = await scope.enter_async_context(served(holding(TARGET, fingerprint)))
            channel = await scope.enter_async_context(rpc.connect(where))
            link = await scope.enter_async_context(verifier_link(channel, TARGET))
            await until(lambda link=link: link.connected)
            groups.append(link.group(1))
    assert groups == ["1", "2"]


@pytest.mark.parametrize("tokenizer", [OTHER, TARGET])
async def test_a_drafter_that_comes_late_and_does_not_fit_is_not_used(tokenizer: str) -> None:
    verifier, drafter = Peer(counting), drafting(tokenizer)
    async with (
        served(verifier) as decoding,
        served(drafter) as proposing,
        rpc.connect(decoding) as to_verifier,
        rpc.connect(proposing) as to_drafter,
        verifier_link(to_verifier) as link,
        drafter_link(to_drafter, link, TARGET) as drafts,
    ):
        await until(lambda: link.connected and (drafts.connected or drafts.problem))
        asked = replace(REQUEST, shape=DraftShape(1, 1, 1))
        assert len([step async for step in Relays(link, drafts).run(asked)]) == 3
    assert bool(drafter.sent("open")) == (tokenizer == TARGET), "all was sent before it ended"


def test_a_fingerprint_is_that_of_the_weights_and_the_tokens(
    make_model: Callable[[str, int], Path],
) -> None:
    def found(seed: int, tokenizer: str = "t") -> str:
        model = load_model(ModelServiceConfig(model=make_model("llama", seed)))
        return model_fingerprint(runner_of(model, 1024, True), tokenizer)

    assert found(1) == found(1)
    assert len({found(1), found(2), found(1, "u")}) == 3


def test_a_weights_fingerprint_is_that_of_the_files_and_not_of_what_is_computed(
    make_model: Callable[[str, int], Path], tmp_path: Path
) -> None:
    first, second = make_model("llama", 1), make_model("llama", 2)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert weights_fingerprint(copy, "t") == weights_fingerprint(first, "t")
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 7.0}))
    different = weights_fingerprint(copy, "t"), weights_fingerprint(second, "t")
    assert len({weights_fingerprint(first, "t"), weights_fingerprint(first, "u"), *different}) == 4
