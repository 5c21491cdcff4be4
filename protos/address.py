"""Parses and checks network addresses and sources of addresses. An address is HOST:PORT, with
brackets around an IPv6 host as in a URL. A source is an address, a DNS name or a file, and may
stand for several addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

DNS, FILE = "dns:///", "file://"
NEVER_PUBLIC = (".localhost", ".internal")  # domain suffixes under which nobody can register a name


def joined(host: str, port: int) -> str:
    """Return the address of a host and a port, such as `127.0.0.1:50051` or `[::1]:50051`."""
    host = unbracketed(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unbracketed(host: str) -> str:
    """Return a host without the brackets that may surround it: `::1` for `[::1]`."""
    return host.removeprefix("[").removesuffix("]")


def split(address: str) -> tuple[str, int]:
    """Return an address's host, without brackets, and its port. Raises ValueError if the text is
    not an address.
    """
    host, _, port = address.rpartition(":")
    if not host or "@" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return unbracketed(host), int(port)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to a port of this host."""
    try:
        return ip_address(unbracketed(host)).is_loopback
    except ValueError:
        return host == "localhost"


def check_encrypted(secret: str, addresses: Iterable[str]) -> None:
    """Raise ValueError if a secret would be sent to another machine unencrypted. `secret` is the
    name of the secret, for the error message. `addresses` may also contain `dns:///HOST:PORT`.
    """
    for address in addresses:
        if not is_loopback(split(address.removeprefix(DNS))[0]):
            raise ValueError(f"{secret} would be sent to {address} in the clear: tls_ca is needed")


def check_source(source: str) -> None:
    """Raise ValueError unless a source is an address, `dns:///HOST:PORT` or `file:///PATH`."""
    if not source.startswith(f"{FILE}/"):
        split(source.removeprefix(DNS))


def names_this_machine(host: str) -> bool:
    """Tell whether a request's Host header is empty or a name that can only mean this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return not host or is_loopback(name) or name.endswith(NEVER_PUBLIC)
