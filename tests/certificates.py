"""Certificates of a CA made for the tests, and the files of it that each role is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.orchestrator.cli import certificates
from tandem.orchestrator.cli.certificates import tls_of

__all__ = ["made", "settings", "tls_of"]


def made(folder: Path, *clients: str, names: tuple[str, ...] = ()) -> Path:
    """A folder of certificates."""
    certificates.make(folder, names, clients)
    return folder


def settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the same files as settings of a service or a client."""
    tls = tls_of(folder, name)
    return {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
