"""Network policies of the overlays in a kernel: each required connection can be made, and no other;
a request passes two cells, two verifiers and two drafters behind these rules.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

import pytest

from tandem.benchmarks.peers.checkout import HERE, address, python
from tests.contracts.test_network_policies import (
    CLIENT_API,
    DNS,
    DRAFTER,
    PEERS,
    PROBED,
    VERIFIER,
    pods,
    wanted,
)
from tests.manifests import KUBERAY, OVERLAYS
from tests.pods import Host, enforce, listening, network
from tests.served import Pair
from tests.waiting import LIMIT

pytestmark = pytest.mark.long("makes a network of a dozen namespaces, with rules in the kernel")

REPLICAS, RAY = 2, {"head", "worker"}


@contextmanager
def ruled(overlay: str) -> Iterator[list[Host]]:
    """Make an overlay's pods, two of each, and the peers outside its namespace, with its rules."""
    ends = [end for end in pods(overlay) for _ in range(REPLICAS)]
    scope = network([*ends, *PEERS])
    try:
        hosts = scope.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network of namespaces here: {error}")
    try:
        enforce(overlay, hosts)
        yield hosts
    finally:
        scope.__exit__(None, None, None)


def connections(hosts: Sequence[Host]) -> tuple[set[tuple[str, str, int]], ...]:
    """Return which (caller, callee, port) can be connected to, and which cannot, by their names."""
    found: tuple[set[tuple[str, str, int]], ...] = set(), set()
    for caller in hosts:
        ours = [each for each in hosts if each.end.ours or caller.end.ours]
        pairs = [(callee, port) for callee in ours for port in PROBED if callee is not caller]
        reached = caller.reaches((callee.address, port) for callee, port in pairs)
        for (callee, port), passes in zip(pairs, reached, strict=True):
            found[not passes].add((caller.end.name, callee.end.name, port))
    return found


def needed(overlay: str) -> set[tuple[str, str, int]]:
    """Return the connections that must be allowed; a range of all addresses includes those of the
    cluster.
    """
    cells = {port for name, _, port in wanted(overlay) if name == "internet"}
    return wanted(overlay) | {(peer.name, "orchestrator", port) for peer in PEERS for port in cells}


def check_names(hosts: Sequence[Host]) -> None:
    """Check that every pod can look up names, which uses datagrams."""
    (server,) = [each for each in hosts if each.end.name == "dns"]
    with server.run(lambda: socket.socket(type=socket.SOCK_DGRAM)) as asked:
        asked.settimeout(LIMIT)
        asked.bind(("", DNS))
        for host in hosts:
            if host.end.ours:
                with host.run(lambda: socket.socket(type=socket.SOCK_DGRAM)) as asking:
                    asking.sendto(b"?", (server.address, DNS))
                assert asked.recvfrom(1)[1][0] == host.address


def check(overlay: str, hosts: Sequence[Host]) -> None:
    passing, refused = connections(hosts)
    assert passing & refused == set(), "replicas are let through alike"
    if overlay == KUBERAY:
        passing = {each for each in passing if not set(each[:2]) <= RAY}
    assert needed(overlay) - passing == set(), "is not let through"
    assert passing - needed(overlay) == set(), "is let through"


@pytest.mark.parametrize("overlay", (*OVERLAYS, KUBERAY))
def test_the_kernel_lets_through_what_has_to_be_and_nothing_else(overlay: str) -> None:
    with ruled(overlay) as hosts, listening(hosts, PROBED):
        check(overlay, hosts)
        check_names(hosts)


async def test_a_request_passes_and_each_forbidden_connection_is_refused(embedded: Pair) -> None:
    target, draft = str(embedded.target), str(embedded.draft)
    with ruled("cpu") as hosts:
        places = {
            role: ",".join(f"{each.address}:{port}" for each in hosts if each.end.name == role)
            for role, port in (("verifier", VERIFIER), ("drafter", DRAFTER))
        }
        flags = {
            "verifier": ("verifier_service", "--model", target, "--threads", "1"),
            "drafter": ("drafter_service", "--model", draft, "--threads", "1"),
            "orchestrator": (
                *("orchestrator", "--no-ray", "--tokenizer", target, "--http-port", "8000"),
                *(word for role, places in places.items() for word in (f"--{role}", places)),
            ),
        }
        async with AsyncExitStack() as scope:
            starting = []
            for host in hosts:
                if module := flags.get(host.end.name, ())[:1]:
                    ports = host.end.ports
                    own = f"--port={ports['grpc']}", f"--metrics-port={ports['metrics']}"
                    words = "-P", "-m", f"tandem.{module[0]}", *flags[host.end.name][1:], *own
                    started = python(
                        *(*words, "--host=0.0.0.0", "--insecure", "--log-level=error"),
                        folder=HERE,
                        enter=host.enter,
                        PYTHONPATH=str(HERE / "src"),
                    )
                    starting.append(address(await scope.enter_async_context(started)))
            await asyncio.gather(*starting)
            (client,) = [host for host in hosts if host.end.name == "client"]
            cells = [each.address for each in hosts if each.end.name == "orchestrator"]
            texts = {await asked(client, cell) for cell in cells}
            assert len(texts) == 1 and texts != {""}
            with listening(hosts, PROBED, but=True):
                await asyncio.to_thread(check, "cpu", hosts)


async def asked(client: Host, cell: str) -> str:
    """Return the text of a client's request in its namespace, once the cell has two of each
    model.
    """
    place = f"--address={cell}:{CLIENT_API}"
    (model,) = json.loads(await ran(client, "status", place, "--json"))["models"]
    for role in ("verifiers", "drafters"):
        assert len(model[role]) == REPLICAS, model[role]
        assert not [each for each in model[role] if each.get("problem")], model[role]
    words = "--json", "--temperature=0", "--max-new-tokens=20", "Once there was a policy"
    return str(json.loads(await ran(client, "generate", place, *words))["text"])


async def ran(client: Host, *words: str) -> str:
    """Return what a client's command prints."""
    command = *client.enter, sys.executable, "-P", "-m", "tandem", *words
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()
