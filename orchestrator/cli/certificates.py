"""Make a CA and certificates for one installation of Tandem, as PEM files in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.protos.errors import Unusable
from tandem.protos.tls import Tls

SERVICES, CLIENT = ("verifier", "drafter", "orchestrator"), "client"
EVERYWHERE = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
CA, CA_DAYS, DAYS = "ca", 3650, 365
# certificates become valid this long before their creation, in case a clock is slow
EARLY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make(
    folder: Path,
    names: Sequence[str] = (),
    more: Sequence[str] = (),
    days: int = DAYS,
    *,
    force: bool = False,
    only: bool = False,
) -> list[Path]:
    """Make certificates for the services, for a client, and for the clients whose common names are
    in `more`. With `only`, make certificates only for the clients in `more`. The certificates of
    services are also valid for the hosts and IP addresses in `names`; an entry SERVICE=NAME applies
    only to that service. The CA in `folder` signs all certificates. If the folder has no CA, one is
    created.

    Returns the paths of the certificate files. Raises Unusable, for example if a file already
    exists and `force` is not set.
    """
    _check([CA, *SERVICES, CLIENT, *more], names)
    wanted = [*more] if only else [*SERVICES, CLIENT, *more]
    paths = [folder / f"{name}.pem" for name in wanted]
    if there := [str(path) for path in paths if path.exists() and not force]:
        raise Unusable(f"{', '.join(there)}: already exists; --force replaces it and keeps the CA")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ca = _ca(folder)
        _check_end(ca, days)
        for name, path in zip(wanted, paths, strict=True):
            _write(path, _signed(name, _hosts(name, names), days, ca))
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}") from None
    return paths


def key_file(certificate: Path) -> Path:
    """Return the path of the private key that belongs to a certificate file."""
    return certificate.with_name(f"{certificate.stem}-key.pem")


def tls_of(folder: Path, name: str) -> Tls:
    """Return the TLS files that the owner of the certificate `name` uses."""
    certificate = folder / f"{name}.pem"
    return Tls(folder / f"{CA}.pem", certificate, key_file(certificate))


def flags(folder: Path, name: str) -> list[str]:
    """Return the flags that make a service or a command use the certificate `name`."""
    return [f"--tls-{kind}={path}" for kind, path in asdict(tls_of(folder, name)).items()]


def own() -> Path:
    """Return the folder of the certificates that this user's local Tandem uses. The certificates
    are created on the first call. Raises Unusable.
    """
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    folder = folder / "tandem" / "certificates"
    if not (folder / f"{CA}.pem").exists():
        make(folder)
    return folder


def _check(wanted: Sequence[str], names: Sequence[str]) -> None:
    if len(set(wanted)) < len(wanted):
        raise Unusable(f"client: a certificate's name is given twice in {', '.join(wanted)}")
    given = [_split(name) for name in names]
    for services, _ in given:
        if unknown := set(services) - set(SERVICES):
            raise Unusable(f"name: {unknown.pop()!r} is not one of {', '.join(SERVICES)}")
    hosts = [host for _, host in given]
    for name in (*wanted, *hosts):
        if not (HOST.fullmatch(name) or (name in hosts and _is_ip(name))):
            raise Unusable(f"name: {name!r} is neither a host name nor an IP address")


def _split(name: str) -> tuple[Sequence[str], str]:
    """Split `[SERVICE=]HOST` into the services that it applies to and the host."""
    service, is_for_one, host = name.partition("=")
    return ((service,), host) if is_for_one else (SERVICES, name)


def _hosts(name: str, names: Sequence[str]) -> Iterable[str]:
    """Return the hosts for which the certificate `name` is valid."""
    if name not in SERVICES:
        return (name,)
    given = (host for services, host in map(_split, names) if name in services)
    return dict.fromkeys((name, *EVERYWHERE, *given))


def _check_end(ca: Signed, days: int) -> None:
    """Raise Unusable if certificates that expire in `days` days would outlive their CA."""
    end = ca.certificate.not_valid_after_utc
    if (datetime.now(UTC) + timedelta(days=days)).date() > end.date():
        raise Unusable(f"days: {days} would outlive the CA, which expires on {end:%Y-%m-%d}")


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _ca(folder: Path) -> Signed:
    """Return the CA of a folder, and make it if there is none. Raises Unusable."""
    path = folder / f"{CA}.pem"
    if path.exists():
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            key = load_pem_private_key(key_file(path).read_bytes(), None)
        except ValueError as error:
            raise Unusable(f"{path} and its key cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Unusable(f"{key_file(path)} is not an elliptic-curve key made by `tandem certs`")
        return Signed(certificate, key)
    ca = _signed("Tandem CA", (), CA_DAYS, None)
    _write(path, ca)
    return ca


def _signed(name: str, hosts: Iterable[str], days: int, ca: Signed | None) -> Signed:
    """Return a certificate that is signed by `ca`. Without `ca`, return the self-signed certificate
    of a new CA.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = ca.key if ca else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca is None, None), critical=True)
        .add_extension(_usage(ca is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    if ca:
        general = [
            x509.IPAddress(ip_address(host)) if _is_ip(host) else x509.DNSName(host)
            for host in hosts
        ]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if name in SERVICES:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(general), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
    return Signed(builder.sign(signer, SHA256()), key)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, signed: Signed) -> None:
    """Write a certificate and its key. The key is written first, because services accept a key and
    a certificate only if they match. Each file is replaced atomically, so that readers never see a
    partly written file.
    """
    key = signed.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _replace(key_file(path), key, 0o600)
    _replace(path, signed.certificate.public_bytes(Encoding.PEM), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)
