"""Pods of an overlay in network namespaces of one machine. The kernel enforces their network
policies with real nftables, made from what kustomize renders.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.contracts.test_network_policies import End, is_peer, matches, policies
from tests.ray_nodes import ip
from tests.waiting import LIMIT

NAMESPACES, CLONE_NEWNET = Path("/var/run/netns"), 0x40000000
ESTABLISHED = "iif lo accept; ct state established,related accept"
REJECT = "meta l4proto tcp reject with tcp reset; reject"  # a reset comes at once, so no test waits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """A pod or outside peer with an address, in a network namespace of its own."""

    end: End
    address: str
    namespace: str

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the words that run a command in the host's namespace."""
        return "nsenter", f"--net={NAMESPACES / self.namespace}"

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of some work in a thread inside the namespace; sockets that it opens
        stay there.
        """

        def arrive() -> None:
            with (NAMESPACES / self.namespace).open() as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")

        with ThreadPoolExecutor(1, initializer=arrive) as pool:
            return pool.submit(work).result()

    def reaches(self, targets: Iterable[tuple[str, int]]) -> list[bool]:
        """Return the addresses and ports of these targets to which a connection can be made."""

        def connected(target: tuple[str, int]) -> bool:
            try:
                socket.create_connection(target, LIMIT).close()
            except ConnectionRefusedError:
                return False
            return True

        return self.run(lambda: [*map(connected, targets)])


@contextmanager
def network(ends: Sequence[End]) -> Iterator[list[Host]]:
    """Make a namespace for each of these ends and a switch between them while the scope lasts; ends
    with the same name are replicas. Raises OSError or CalledProcessError where namespaces cannot be
    made.
    """
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter", "nft"))):
        raise OSError("needs root and the programs ip, nsenter and nft")
    prefix, subnet = f"pods{os.getpid()}", f"10.214.{os.getpid() % 256}"
    with ExitStack() as scope:

        def namespace(name: str) -> str:
            ip("netns", "add", name)
            scope.callback(ip, "netns", "delete", name)
            ip("-netns", name, "link", "set", "lo", "up")
            return name

        switch = namespace(f"{prefix}-switch")
        ip("-netns", switch, "link", "add", "bridge", "type", "bridge")
        ip("-netns", switch, "link", "set", "bridge", "up")
        hosts = []
        for number, end in enumerate(ends, 1):
            name, address = namespace(f"{prefix}-{number}"), end.address or f"{subnet}.{number}"
            peer = "peer", "name", f"port{number}", "netns", switch
            ip("-netns", name, "link", "add", "eth0", "type", "veth", *peer)
            ip("-netns", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-netns", name, "address", "add", f"{address}/32", "dev", "eth0")
            ip("-netns", name, "link", "set", "eth0", "up")
            ip("-netns", name, "route", "add", "default", "dev", "eth0")
            hosts.append(Host(end, address, name))
        yield hosts


def enforce(overlay: str, hosts: Sequence[Host]) -> None:
    """Have the kernel enforce an overlay's policies on its pods, in both directions."""
    for host in hosts:
        if host.end.ours:
            text = rules(overlay, host, hosts)
            command = [*host.enter, "nft", "-f", "-"]
            done = subprocess.run(command, input=text, text=True, capture_output=True)
            assert done.returncode == 0, f"{done.stderr}\n{text}"


def rules(overlay: str, host: Host, hosts: Sequence[Host]) -> str:
    """Return the rules of a pod for nft. A pod that no policy of a kind selects is unrestricted in
    that direction.
    """
    chains = []
    for kind, way, key, hook in (
        ("Ingress", "ingress", "from", "input"),
        ("Egress", "egress", "to", "output"),
    ):
        selecting = [
            spec
            for spec in policies(overlay)
            if matches(spec["podSelector"], host.end.labels) and kind in spec["policyTypes"]
        ]
        if selecting:
            found = [rule for spec in selecting for rule in spec.get(way) or ()]
            accepted = [line for rule in found for line in _accepted(rule, key, host, hosts)]
            head = f"type filter hook {hook} priority 0; {ESTABLISHED}"
            chains.append(f"chain {way} {{ {'; '.join((head, *accepted, REJECT))}; }}")
    return "\n".join(("table inet policies {", *chains, "}"))


def _accepted(
    rule: Mapping[str, Any], key: str, host: Host, hosts: Sequence[Host]
) -> Iterator[str]:
    """Yield what a policy's rule lets through: each protocol and port, with each of its peers."""
    side = "saddr" if key == "from" else "daddr"
    peers = [_peer(peer, side, hosts) for peer in rule[key]] if key in rule else [""]
    ports = [_port(port, host) for port in rule["ports"]] if "ports" in rule else [""]
    for peer in filter(lambda words: words is not None, peers):
        yield from (f"{peer} {port} accept" for port in ports)


def _peer(peer: Mapping[str, Any], side: str, hosts: Sequence[Host]) -> str | None:
    """Return a peer in nft's syntax, or None if no host matches. A range of addresses applies
    literally: it may contain pods of a cluster.
    """
    if block := peer.get("ipBlock"):
        assert block.keys() == {"cidr"}
        return f"{'ip6' if ':' in block['cidr'] else 'ip'} {side} {block['cidr']}"
    found = ", ".join(each.address for each in hosts if is_peer(peer, each.end))
    return f"ip {side} {{ {found} }}" if found else None


def _port(port: Mapping[str, Any], host: Host) -> str:
    """Return a port in nft's syntax; a named port is the pod's own."""
    return f"{port.get('protocol', 'TCP').lower()} dport {host.end.number(port)}"


@contextmanager
def listening(hosts: Sequence[Host], ports: Iterable[int], but: bool = False) -> Iterator[None]:
    """Listen on each of these ports on every host while the scope lasts, except (`but`) on the
    ports of a pod's own services.
    """
    ports = [*ports]
    with ExitStack() as scope:

        def listen(own: Iterable[int]) -> None:
            for port in {*ports} - {*own}:
                scope.enter_context(socket.create_server(("", port), backlog=1024))

        for host in hosts:
            own = [*host.end.ports.values()] if but else []
            host.run(lambda own=own: listen(own))  # type: ignore[misc]
        yield
