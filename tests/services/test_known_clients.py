"""A Tandem system with known clients: who may call which method of each service."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from transformers import PreTrainedModel

from tandem import AsyncClient
from tandem.orchestrator.frontend import identities
from tandem.protos.errors import PermissionDenied, TransportLost, Unauthenticated
from tandem.protos.tls import Tls
from tandem.protos.transport import rpc
from tandem.protos.transport.guard import AUTHORIZATION
from tests import reference
from tests.certificates import made, settings, tls_of
from tests.services.known import (
    ALICE,
    BOB,
    CERTIFIED,
    CLIENT_API,
    DENIED,
    DRAFTING,
    LOST,
    METHODS,
    OK,
    PHONE,
    REFLECTION,
    REGISTRATION,
    UNKNOWN,
    VERIFYING,
    Known,
    bearer,
    codes,
    drafters,
    entry,
    known_clients,
)
from tests.waiting import until


@pytest.fixture(scope="module")
async def known(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Known]:
    async with known_clients(tmp_path_factory.mktemp("certificates")) as known:
        yield known


def test_all_methods_are_those_that_are_tried() -> None:
    tried = CLIENT_API, REGISTRATION, DRAFTING, VERIFYING, REFLECTION
    assert set.union(*tried) == set(METHODS)
    assert sum(map(len, tried)) == len(METHODS) >= 9


@pytest.mark.parametrize("how", ["none", "basic", "wrong", "hash", "revoked"])
async def test_no_method_of_the_client_api_is_open_to_strangers(known: Known, how: str) -> None:
    place, ca = known.system.orchestrator, Tls(known.system.folder / "ca.pem")
    digest = hashlib.sha256(ALICE.encode()).hexdigest()
    given = {
        "none": {},
        "basic": {AUTHORIZATION: f"Basic {ALICE}"},
        "wrong": bearer(ALICE[:-1]),
        "hash": bearer(digest),
        "revoked": bearer(BOB),
    }
    known.write(entry("alice", ALICE), PHONE, CERTIFIED)
    paths = CLIENT_API | REGISTRATION | REFLECTION
    try:
        assert await codes(place, ca, "orchestrator", paths, **given[how]) == {UNKNOWN}
        assert await codes(place, None, "", paths, **bearer(ALICE)) == {LOST}
    finally:
        known.all()


async def test_each_client_may_do_what_its_entry_has(known: Known) -> None:
    place, ca = known.system.orchestrator, Tls(known.system.folder / "ca.pem")
    may = CLIENT_API | REFLECTION
    assert LOST not in await codes(place, ca, "orchestrator", may, **bearer(ALICE))
    assert await codes(place, ca, "orchestrator", REFLECTION, **bearer(ALICE)) == {OK}
    assert await codes(place, ca, "orchestrator", REGISTRATION, **bearer(ALICE)) == {DENIED}
    phone, client = tls_of(known.system.folder, "phone"), tls_of(known.system.folder, "client")
    certified = known.certificates
    assert await codes(certified, phone, "orchestrator", CLIENT_API) == {DENIED}
    assert await codes(certified, client, "orchestrator", REGISTRATION) == {DENIED}
    assert await codes(certified, client, "orchestrator", may) == {OK}
    stranger = tls_of(known.system.folder, "stranger")
    everything = may | REGISTRATION
    assert await codes(certified, stranger, "orchestrator", everything) == {DENIED}
    assert await codes(certified, ca, "orchestrator", everything, **bearer(ALICE)) == {LOST}


async def test_a_token_that_is_not_a_client_s_takes_away_no_certificate_s_rights(
    known: Known,
) -> None:
    place, other = known.certificates, bearer("a-token-of-other-front-ends")
    phone, stranger = (tls_of(known.system.folder, name) for name in ("phone", "stranger"))
    found = await codes(place, phone, "orchestrator", REGISTRATION, **other)
    assert found.isdisjoint((UNKNOWN, DENIED, LOST))
    assert await codes(place, phone, "orchestrator", CLIENT_API, **other) == {DENIED}
    assert await codes(place, stranger, "orchestrator", REGISTRATION, **other) == {DENIED}


@pytest.mark.parametrize("service", ["verifier", "drafter"])
async def test_no_method_of_an_internal_port_is_open_to_others(known: Known, service: str) -> None:
    folder = known.system.folder
    places = {
        "verifier": (known.system.verifier, "verifier", VERIFYING, DENIED),
        "drafter": (known.system.drafter, "drafter", DRAFTING, DENIED),
    }
    place, role, paths, refusal = places[service]
    paths = paths | REFLECTION
    for wrong in (None, Tls(folder / "ca.pem")):
        assert await codes(place, wrong, role, paths, **bearer(ALICE)) == {LOST}
    for name in ("client", "phone", "stranger"):
        found = await codes(place, tls_of(folder, name), role, paths)
        assert found == {refusal}, name


async def test_health_is_open_to_all_who_got_through_the_handshake(known: Known) -> None:
    ca = Tls(known.system.folder / "ca.pem")
    async with rpc.connect(known.system.orchestrator, ca, "orchestrator") as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        answer = await check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_that_is_removed_is_refused_from_its_next_call_on(known: Known) -> None:
    async with known.system.with_token(BOB) as bob, known.system.with_token(ALICE) as alice:
        stream = bob.stream("Once", max_new_tokens=48, temperature=0.0)
        chunks = aiter(stream)
        await anext(chunks)
        known.write(entry("alice", ALICE), PHONE)
        try:
            assert [chunk async for chunk in chunks], "what runs goes on"
            with pytest.raises(Unauthenticated):
                await bob.generate("Once", max_new_tokens=2)
            assert (await alice.generate("Once", max_new_tokens=2)).text
        finally:
            known.all()


async def test_a_drafter_that_is_removed_leaves_at_once(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none() -> bool:
        return not await drafters(known)

    monkeypatch.setattr(identities, "POLL_SECONDS", 0.05)
    known.write(entry("alice", ALICE))
    try:
        await until(none)
    finally:
        known.all()
    await until(lambda: drafters(known), "it comes back when it may")


async def test_refusals_of_clients_are_errors_of_their_own(known: Known) -> None:
    for token, kind in (("wrong-token", Unauthenticated), ("", Unauthenticated)):
        async with known.system.with_token(token) as client:
            with pytest.raises(kind) as refused:
                await client.generate("Once")
            assert token not in str(refused.value) or not token
    async with known.system.client("phone") as client:
        with pytest.raises(Unauthenticated):
            await client.status()
    tls = settings(known.system.folder, "phone")
    async with AsyncClient(known.certificates, **tls) as client:
        with pytest.raises(PermissionDenied, match="phone may register, not generate"):
            await client.status()


@pytest.mark.usefixtures("waited_for")
async def test_the_text_over_tls_is_the_targets_own_and_drafts_are_accepted(
    known: Known, target: PreTrainedModel
) -> None:
    prompt = [400, 500, 600, 700]
    async with known.system.with_token(ALICE) as client:

        async def drafted() -> Any:
            """Return an answer with drafts, which shows that the drafter was reached."""
            answer = await client.generate(prompt, max_new_tokens=16, temperature=0.0, rule="top1")
            return answer if answer.speculation.num_draft_tokens else None

        answer = await until(drafted)
        (model,) = (await client.status()).models
    assert list(answer.token_ids) == reference.generate(target, prompt, 16)
    assert answer.speculation.num_accepted_draft_tokens > 0
    assert all(each.serving for each in (*model.verifiers, *model.drafters))


async def test_a_certificate_of_another_ca_does_not_get_in(known: Known, tmp_path: Path) -> None:
    wrong = settings(made(tmp_path), "client") | {"tls_ca": known.system.folder / "ca.pem"}
    async with AsyncClient(known.certificates, retry_seconds=0.1, **wrong) as client:
        with pytest.raises(TransportLost):
            await client.generate("Once")
