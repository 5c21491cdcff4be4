"""TLS from PEM files, which may be replaced at any time.

Reads and checks them; what ports and channels make of them is the business of `transport`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from tandem.protos.errors import Unusable

log = structlog.get_logger()


class Pem(NamedTuple):
    """The contents of the files; a client without a certificate has only a CA."""

    ca: bytes
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the CA that signs the certificates of all peers, and of an own certificate and its
    key.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that there are."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path)

    def read(self) -> Pem:
        """What the files have; raises Unusable, also if key and certificate do not fit."""
        if bool(self.cert) != bool(self.key):
            raise Unusable("tls_cert and tls_key belong together")
        for path in self.files:
            try:
                path.read_bytes()
            except OSError as error:
                raise Unusable(f"{path} cannot be read: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise Unusable(f"tls_ca: {self.ca} has no certificate in PEM") from None
        if not self.cert or not self.key:
            return Pem(self.ca.read_bytes(), None, None)
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except ssl.SSLError:
            problem = f"{self.cert} and {self.key} are no certificate and its key in PEM"
            raise Unusable(f"tls_cert and tls_key: {problem}") from None
        return Pem(self.ca.read_bytes(), self.cert.read_bytes(), self.key.read_bytes())


class CertificateFiles:
    """The newest contents that can be used: files are replaced one after the other."""

    def __init__(self, tls: Tls) -> None:
        """Raises Unusable."""
        self._tls = tls
        self._seen = self._stamps()
        self.pem = tls.read()

    def refresh(self) -> bool:
        """Look at the files; whether their contents are others than before."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            pem, changed_again = self._tls.read(), stamps != self._stamps()
        except (OSError, Unusable) as error:
            log.warning("certificates cannot be read again", problem=str(error))
            return False
        if changed_again:  # amid the reading: the next look finds it
            return False
        self._seen = stamps
        changed, self.pem = pem != self.pem, pem
        return changed

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._tls.files:
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0, 0))
                continue
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


def server_context(tls: Tls, certificates: bool = True) -> ssl.SSLContext:
    """For HTTPS, with the newest files for each connection; clients must have `certificates`, or
    are not asked for them. Raises Unusable.
    """
    files, context = CertificateFiles(tls), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED if certificates else ssl.CERT_NONE

    def load() -> None:
        if tls.cert and tls.key:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        context.load_verify_locations(tls.ca)

    def look(*_: object) -> None:
        """Called in every handshake."""
        if files.refresh():
            load()

    load()
    context.sni_callback = look
    return context
