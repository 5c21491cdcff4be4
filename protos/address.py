"""HOST:PORT as people write it; the host of IPv6 has brackets there, as in a URL."""

from __future__ import annotations


def joined(host: str, port: int) -> str:
    """An address: `127.0.0.1:50051`, `[::1]:50051`."""
    host = unbracketed(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unbracketed(host: str) -> str:
    """The host alone, however it was given: `::1`."""
    return host.removeprefix("[").removesuffix("]")
