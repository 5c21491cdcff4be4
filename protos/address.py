"""HOST:PORT as people write it; the host of IPv6 has brackets there, as in a URL. And sources,
which stand for several addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

DNS, FILE = "dns:///", "file://"
NEVER_PUBLIC = (".localhost", ".internal")  # names that nobody can register


def joined(host: str, port: int) -> str:
    """An address: `127.0.0.1:50051`, `[::1]:50051`."""
    host = unbracketed(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unbracketed(host: str) -> str:
    """The host alone, however it was given: `::1`."""
    return host.removeprefix("[").removesuffix("]")


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of an address; raises ValueError if it is none."""
    host, _, port = address.rpartition(":")
    if not host or "@" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return unbracketed(host), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens there."""
    try:
        return ip_address(unbracketed(host)).is_loopback
    except ValueError:
        return host == "localhost"


def check_encrypted(secret: str, addresses: Iterable[str]) -> None:
    """Raise ValueError if a secret of this name would be sent in the clear to another machine;
    `addresses` may be `dns:///HOST:PORT` too.
    """
    for address in addresses:
        if not is_loopback(split(address.removeprefix(DNS))[0]):
            raise ValueError(f"{secret} would be sent to {address} in the clear: tls_ca is needed")


def check_source(source: str) -> None:
    """Raise ValueError if it is neither an address nor `dns:///HOST:PORT` nor `file:///PATH`."""
    if not source.startswith(f"{FILE}/"):
        split(source.removeprefix(DNS))


def names_this_machine(host: str) -> bool:
    """Whether a request's Host header, if there is one, is a name that leads here by itself."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return not host or is_loopback(name) or name.endswith(NEVER_PUBLIC)
