"""Replicas are found at their addresses, and come and go while requests run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandem import models
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet import discovery
from tandem.orchestrator.fleet.discovery import Discovery, resolve
from tandem.orchestrator.fleet.membership import Members, Membership, PerAddress
from tandem.orchestrator.fleet.registration import Registry
from tandem.orchestrator.fleet.replicas import Replicas
from tandem.protos.service.tasks import background
from tests.waiting import LIMIT, until


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Read the sources often; return the results of each read."""
    read: list[str] = []

    async def counted(source: str) -> tuple[str, ...]:
        try:
            return await resolve(source)
        finally:
            read.append(source)

    monkeypatch.setattr(discovery, "LOOKUP_SECONDS", 0.01)
    monkeypatch.setattr(discovery, "resolve", counted)
    return read


async def test_an_address_stands_for_itself() -> None:
    assert await resolve("[::1]:50051") == ("[::1]:50051",)


async def test_a_dns_name_stands_for_all_its_addresses() -> None:
    assert "127.0.0.1:50051" in await resolve("dns:///localhost:50051")


async def test_a_replica_with_two_addresses_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        four, six = socket.AF_INET, socket.AF_INET6
        found = [(six, "fd00::1"), (four, "10.0.0.1"), (four, "10.0.0.2"), (six, "fd00::2")]
        return [(family, 0, 0, "", (address, port)) for family, address in found]

    monkeypatch.setattr(discovery.socket, "getaddrinfo", both)
    assert await resolve("dns:///verifier:1") == ("10.0.0.1:1", "10.0.0.2:1")


async def test_a_file_has_an_address_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "drafters"
    file.write_text("# ours\n\nhost-a:1  # the first\n[::1]:2\nhost-a:1\n", "utf-8")
    assert await resolve(f"file://{file}") == ("host-a:1", "[::1]:2")


@pytest.mark.parametrize("line", ["host", "host:0", ":1", "host:port", "host:65536"])
async def test_a_line_that_is_no_address_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "drafters"
    file.write_text(f"a:1\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match=f"'{line}' is not HOST:PORT"):
        await resolve(f"file://{file}")


async def test_members_follow_a_file_that_changes_and_outlive_one_that_breaks(
    tmp_path: Path, looks: list[str]
) -> None:
    async def looked() -> None:
        """Wait until the current file was read and its replicas are known."""
        before = len(looks)
        await until(lambda: len(looks) >= before + 3)

    file = tmp_path / "drafters"
    file.write_text("a:1\n", "utf-8")
    async with Discovery(("v:1",), (f"file://{file}", "c:1")).running() as membership:
        assert membership.now == Members(("v:1",), ("a:1", "c:1"))
        file.write_text("b:1\na:1\n", "utf-8")
        await until(lambda: membership.now == Members(("v:1",), ("b:1", "a:1", "c:1")))
        file.write_text("what?\n", "utf-8")
        await looked()
        file.unlink()
        await looked()
        assert membership.now == Members(("v:1",), ("b:1", "a:1", "c:1")), "as it was"
        file.write_text("", "utf-8")
        await until(lambda: membership.now == Members(("v:1",), ("c:1",)))


async def test_a_source_that_fails_at_the_start_is_used_when_it_can_be(tmp_path: Path) -> None:
    file = tmp_path / "verifiers"
    async with Discovery((f"file://{file}",), ()).running() as membership:
        assert membership.now == Members()
        file.write_text("a:1", "utf-8")
        await until(lambda: membership.now == Members(("a:1",)))


async def test_registered_drafters_are_members_too() -> None:
    found = Discovery(("v:1",), ("d:1",))
    async with found.running() as membership:
        found.register("e:1")
        found.register("d:1")
        assert membership.now.drafters == ("d:1", "e:1")
        found.unregister("d:1")
        found.unregister("e:1")
        assert membership.now.drafters == ("d:1",)


async def test_a_name_server_that_flaps_removes_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server fails, returns a part, and returns nothing, each a few times in a row."""
    whole = ("a:1", "b:1")
    answers: list[tuple[str, ...] | None] = [whole, *[None] * 9, *[("a:1",)] * 4]
    answers += [whole, *[()] * 4, whole, *[("a:1",)] * 9]
    looked, seen = 0, set[tuple[str, ...]]()

    async def flapping(source: str) -> tuple[str, ...]:
        nonlocal looked
        seen.add(membership.now.verifiers)
        looked += 1
        found = answers[min(looked, len(answers)) - 1]
        if found is None:
            raise OSError("no answer")
        return found

    monkeypatch.setattr(discovery, "resolve", flapping)
    found = Discovery(("dns:///name:1",), ())
    membership = found.membership
    async with found.running():
        seen.clear()
        await until(lambda: looked == len(answers) - 9)
        assert seen == {whole}
        await until(lambda: membership.now.verifiers == ("a:1",))
        assert looked >= len(answers) - 9 + discovery.REMOVAL_THRESHOLD, "it was really gone"


async def test_what_belongs_to_an_address_lives_as_long_as_it_is_there() -> None:
    entered: list[str] = []
    left: list[str] = []

    @asynccontextmanager
    async def make(address: str) -> AsyncIterator[str]:
        entered.append(address)
        yield address.upper()
        left.append(address)

    async with PerAddress(make) as items:
        await items.update(("a", "b"))
        await items.update(("b", "c"))
        await until(lambda: left)
        assert (entered, left) == (["a", "b", "c"], ["a"])
        assert items.items == {"b": "B", "c": "C"}
    assert sorted(left) == ["a", "b", "c"]


async def test_those_that_leave_do_not_wait_for_each_other_and_nobody_for_them() -> None:
    leaving: list[str] = []
    go = asyncio.Event()

    @asynccontextmanager
    async def make(address: str) -> AsyncIterator[str]:
        try:
            yield address
        finally:
            leaving.append(address)
            await go.wait()

    async with PerAddress(make) as items:
        await items.update(("a", "b"))
        await items.update(("c",))
        await until(lambda: leaving == ["a", "b"])
        assert items.items == {"c": "c"}
        returning = asyncio.create_task(items.update(("a", "c")))
        await asyncio.sleep(0)  # the connection gets no farther than this
        assert "a" not in items.items, "the older one is still there"
        go.set()
        await returning
        assert items.items == {"c": "c", "a": "a"}


async def test_a_replica_that_leaves_while_it_is_asked_is_only_gone() -> None:
    """gRPC reports a closed channel to the caller as if the caller were cancelled."""
    config = OrchestratorConfig(verifier="v:1", tokenizer=models.TARGET)
    async with silent() as address:
        membership = Membership(Members((address,)))
        replicas = Replicas(config, membership, Registry(str, str))
        async with background(replicas.follow()):
            await until(lambda: replicas.verifiers)
            serving = asyncio.create_task(replicas.probe_verifiers(10 * LIMIT))
            status = asyncio.create_task(replicas.status())
            await asyncio.sleep(0)  # both probes are under way
            membership.set(Members())
            assert not (await serving).serving
            ((verifier,), _) = await status
            assert verifier.model is None


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """Open a port that accepts connections and never answers."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
