"""Ray nodes as an operator starts them, some in their own network namespaces."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from tandem.benchmarks.peers.checkout import HERE
from tests.ray_processes import running
from tests.waiting import LIMIT

MARK = b"Ray runtime started"
RAY = [sys.executable, "-P", "-m", "ray.scripts.scripts"]
NODE = [
    *("start", "--block", "--disable-usage-stats"),
    "--object-store-memory=80000000",
]
HEAD = ("--head", "--include-dashboard=false")


def environment() -> dict[str, str]:
    """Return the environment of a cluster's processes: a token of the cluster's own, no memory
    monitor (which would end processes), nodes that may listen beyond loopback, and detection of
    lost nodes within seconds.
    """
    return os.environ | {
        "PYTHONPATH": str(HERE / "src"),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "8",
    }


@dataclass(frozen=True, slots=True)
class Link:
    """A second machine whose only connection to this one is a pair of virtual network devices."""

    namespace: str
    here: str
    there: str

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the words that run a command on the second machine."""
        return "nsenter", f"--net=/var/run/netns/{self.namespace}"

    def set(self, state: str) -> None:
        """Set the far end of the link `up` or `down`; the route on this machine stays and leads
        nowhere.
        """
        ip("-netns", self.namespace, "link", "set", "eth0", state)


def ip(*words: str) -> None:
    """Run `ip` with these words."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def second_machine() -> Iterator[Link]:
    """Make a link while the scope lasts; raises OSError or CalledProcessError where it cannot be
    made.
    """
    name, subnet = f"tandem{os.getpid() % 10_000_000}", f"10.213.{os.getpid() % 256}"
    link = Link(name, f"{subnet}.1", f"{subnet}.2")
    if os.getuid() or not all(map(shutil.which, ("ip", "nsenter"))):
        raise OSError("needs root and the programs ip and nsenter")
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"{link.here}/30", "dev", name)
        ip("link", "set", name, "up")
        for words in (
            ("address", "add", f"{link.there}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-netns", name, *words)
        yield link
    finally:
        ip("netns", "delete", name)


@asynccontextmanager
async def node(
    environment: dict[str, str], *flags: str, cpus: int = 8, enter: tuple[str, ...] = ()
) -> AsyncIterator[Process]:
    """Run a Ray node while the scope lasts; it may die earlier."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = *enter, *RAY, *NODE, f"--num-cpus={cpus}", f"--temp-dir={folder}", *flags
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            printed = b""
            while MARK not in printed:
                line = await process.stdout.readline()
                assert line, f"no Ray node: {printed.decode()}"
                printed += line
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(LIMIT):
                    await process.communicate()
            kill(process.pid)


def processes(session: int) -> list[int]:
    """Return the processes of a session."""
    return [process for process, its, _ in running() if its == session]


def kill(session: int) -> int:
    """Kill all processes of a session at once; return how many there were."""
    found = processes(session)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(found)
