"""Ask a service on this machine whether it serves, by its own settings: `python -m
tandem.protos.probe verifier`. For containers, whose command lines it does not see: ports and
certificates have to be in the environment or in the settings' file.

Exit code 0: it serves. 1: it does not, and a line gives the reason.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from ipaddress import ip_address
from pathlib import Path

from tandem.protos.address import joined, unbracketed
from tandem.protos.errors import Unusable
from tandem.protos.service.config import ROLES, outside
from tandem.protos.tls import Tls
from tandem.protos.transport import health, rpc

HOST, PORTS = "127.0.0.1", {"orchestrator": 50051}  # where they are unless it is set
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
SECONDS = 5.0
PROCESS = ""  # its name in grpc.health.v1


def service(role: str) -> str:
    """The full name of a role's gRPC service."""
    return f"tandem.v1.{role.capitalize()}Service"


def address(role: str) -> str:
    """Where a role listens on this machine; raises Unusable if only the service knows."""
    given = getattr(outside(), role)
    host, port = str(given.get("host") or HOST), str(given.get("port") or PORTS.get(role, 0))
    if not port.isdecimal() or not int(port):
        raise Unusable(f"{role}.port: it has to be set, in the environment or in a file")
    try:
        ip = ip_address(unbracketed(host))
    except ValueError:
        return joined(host, int(port))
    return joined(LOOPBACK[ip.version] if ip.is_unspecified else host, int(port))


def certificates(role: str) -> Tls | None:
    """The role's own, which are good for a call to itself."""
    given = getattr(outside(), role)
    files = (given.get(f"tls_{name}") for name in ("ca", "cert", "key"))
    ca, *own = (path and Path(path) for path in files)
    return Tls(ca, *own) if ca else None


async def serves(address: str, name: str, tls: Tls | None, role: str) -> bool:
    """Whether a service of a role at an address is SERVING; the empty name is the process."""
    async with rpc.connect(address, tls, role) as channel:
        return await health.is_serving(channel, name, SECONDS)


def main() -> None:
    """The command."""
    parser = ArgumentParser("tandem.protos.probe", description="Does a service here serve?")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--live", action="store_true", help="ask only whether its process answers")
    given = parser.parse_args()
    name = PROCESS if given.live else service(given.role)
    try:
        place = address(given.role)
        answered = asyncio.run(serves(place, name, certificates(given.role), given.role))
    except Unusable as problem:
        raise SystemExit(f"error: {problem}") from None
    if not answered:
        print(f"{given.role} at {place}: not serving", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
