"""The file of clients decides who has a token or a certificate, and its changes take effect at
once.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tandem.orchestrator.frontend import identities
from tandem.orchestrator.frontend.identities import Identities
from tandem.orchestrator.requests.request import Quota, Request
from tandem.protos.errors import PermissionDenied, Unusable
from tests.waiting import until

ALICE, BOB = "alice-s-token-for-tests", "bob-s-token-for-tests"


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CLIENTS = f"""
alice: {{token_sha256: {sha256(ALICE)}, max_running: 2, weight: 3}}
bob: {{token_sha256: [{sha256("older")}, {sha256(BOB)}]}}
phone: {{certificate: phone.example.com, may: [register]}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clients.yaml"
    path.write_text(CLIENTS)
    return path


def test_clients_are_known_by_each_of_their_tokens_and_certificates(file: Path) -> None:
    known = Identities(file)
    names = [each and each.name for each in map(known.of_token, (ALICE, BOB, "older"))]
    assert names == ["alice", "bob", "bob"]
    phone = known.of_certificate("phone.example.com")
    assert phone and phone.name == "phone"
    for wrong in ("", "alice", sha256(ALICE), ALICE + " ", ALICE.upper(), "ä" * 100):
        assert known.of_token(wrong) is None
    for wrong in ("", "phone", "alice"):
        assert known.of_certificate(wrong) is None


def test_an_entry_that_is_removed_or_added_counts_at_once(file: Path) -> None:
    known = Identities(file)
    assert known.of_token(ALICE)
    file.write_text(CLIENTS.replace("alice", "#alice"))
    assert known.of_token(ALICE) is None and known.of_token(BOB)
    file.write_text(CLIENTS)
    assert known.of_token(ALICE)


def test_a_file_that_cannot_be_used_changes_nothing(file: Path) -> None:
    known = Identities(file)
    day = "alice: {token_sha256: 2024-13-45}"
    for broken in ("alice: [", "alice: {token: x}", "", "# soon", day, "[" * 1000, CLIENTS * 2):
        file.write_text(broken)
        with capture_logs() as lines:
            assert known.of_token(ALICE) and known.of_token(BOB)
        assert [line["event"] for line in lines] == ["clients cannot be read again"]
    file.unlink()
    assert known.of_token(ALICE)


async def test_who_waits_for_a_revocation_is_woken(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "POLL_SECONDS", 0.01)
    known = Identities(file)
    phone = known.of_certificate("phone.example.com")
    assert phone
    waiting = asyncio.create_task(known.until_changed(phone))
    await asyncio.to_thread(file.write_text, CLIENTS.replace("weight: 3", "weight: 4"))
    await until(lambda: known.of_token(ALICE).weight == 4)  # type: ignore[union-attr]
    assert not waiting.done(), "another client has changed"
    await asyncio.to_thread(file.write_text, CLIENTS.replace("phone:", "tablet:"))
    await waiting


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("alice: {}", "alice: needs token_sha256 or certificate"),
        (f"alice: {{token_sha256: {ALICE}}}", "alice.token_sha256"),
        ("alice: {certificate: a, max_running: 0}", "alice.max_running"),
        ("alice: {certificate: a, weight: -1}", "alice.weight"),
        ("alice: {certificate: a, may: [rule]}", "alice.may"),
        ("alice: {certificate: a, toll: 1}", "alice.toll: Extra inputs"),
        ("a: {certificate: x}\nb: {certificate: x}", "two clients share one of their certificates"),
        ("- alice", "valid dictionary"),
        ("", "valid dictionary"),
        ("a: {certificate: x}\na: {certificate: y}", "contains a name twice"),
        ("a: {token_sha256: 2024-13-45}", "is not YAML"),
        ("alice: [", "is not YAML"),
    ],
)
def test_what_the_file_cannot_have_is_one_line_without_its_secrets(
    tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "clients.yaml"
    file.write_text(content)
    with pytest.raises(Unusable) as refused:
        Identities(file)
    line = str(refused.value)
    assert problem in line and "\n" not in line and ALICE not in line


def test_names_in_headers_subdivide_an_identity_and_never_leave_it(file: Path) -> None:
    known = Identities(file)
    alice, bob = known.of_token(ALICE), known.of_token(BOB)
    assert alice and bob
    nameless, named = Request(client_id=b"peer"), Request(cache_scope=b"name", client_id=b"name")
    requests = [each.owning(it) for each in (alice, bob) for it in (nameless, named)]
    assert len({it.cache_scope for it in requests} | {b""}) == 5, "each has a cache of its own"
    ids = [it.client_id for it in requests]
    assert ids[0] == ids[1] != ids[2]
    assert [it.subclient_id for it in requests] == [b"peer", b"name"] * 2
    assert requests[0].quota == Quota("alice", 2, None, 3)


def test_rights_are_checked_by_name(file: Path) -> None:
    phone = Identities(file).of_certificate("phone.example.com")
    assert phone
    phone.check("register")
    with pytest.raises(PermissionDenied, match="phone may register, not generate"):
        phone.check("generate")
