"""TLS with certificates in PEM files, which may be replaced at any time.

This module reads and checks the files. `transport` applies the files to ports and channels.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from tandem.protos.errors import Unusable

log = structlog.get_logger()


class Pem(NamedTuple):
    """The contents of PEM files. For a client without a certificate, only `ca` is set."""

    ca: bytes
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files: of the CA that signs the certificates of all peers, and of the process's
    own certificate and its key.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths that are not None."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path)

    def read(self) -> tuple[Pem, ssl.SSLContext]:
        """Return the contents of the files, and an SSL context for servers that uses them. Raises
        Unusable if a file cannot be used, or if the key does not belong to the certificate.
        """
        if bool(self.cert) != bool(self.key):
            raise Unusable("tls_cert and tls_key belong together: set both or neither")
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
            return Pem(self.ca.read_bytes(), None, None), context
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except ssl.SSLError:
            problem = f"{self.cert} and {self.key} are not a certificate and its key in PEM"
            raise Unusable(f"tls_cert and tls_key: {problem}") from None
        pem = Pem(self.ca.read_bytes(), self.cert.read_bytes(), self.key.read_bytes())
        return pem, context


class CertificateFiles:
    """Holds the newest valid contents of certificate files, which may be replaced one by one."""

    def __init__(self, tls: Tls) -> None:
        """Read the files. Raises Unusable."""
        self._tls = tls
        self._seen = self._stamps()
        self.pem, self.context = tls.read()

    def refresh(self) -> bool:
        """Reread the files if they have changed. Returns whether there are new valid contents."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            pem, context = self._tls.read()
            changed_again = stamps != self._stamps()
        except (OSError, Unusable) as error:
            log.warning("certificates cannot be read again", problem=str(error))
            return False
        # the files changed while they were read, so the next check reads them again
        if changed_again:
            return False
        self._seen = stamps
        changed = pem != self.pem
        self.pem, self.context = pem, context
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


def server_context(
    tls: Tls, certificates: ssl.VerifyMode = ssl.VerifyMode.CERT_REQUIRED
) -> ssl.SSLContext:
    """Return an SSL context for HTTPS that uses the newest files for each connection.
    `certificates` says whether clients must have certificates, may have them, or are not asked for
    them. Raises Unusable.
    """
    files, looking = CertificateFiles(tls), threading.Lock()
    used = _asking(files.context, certificates)
    first = used

    def look(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        """Use the newest contents of the files for this connection. TLS calls this function in
        every handshake, before certificates are shown.
        """
        nonlocal used
        with looking:  # handshakes run in several threads
            if files.refresh():
                used = _asking(files.context, certificates)
            connection.context = used

    first.sni_callback = look
    return first


def _asking(context: ssl.SSLContext, certificates: ssl.VerifyMode) -> ssl.SSLContext:
    """Set whether clients are asked for certificates, and disable the resumption of TLS sessions. A
    client that reconnects must then show its certificate again, so that a certificate of a replaced
    CA is refused.
    """
    context.verify_mode = certificates
    context.minimum_version, context.num_tickets = ssl.TLSVersion.TLSv1_3, 0
    return context
