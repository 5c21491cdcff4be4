"""What `tandem certs` makes, and what it does not replace."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from tandem.orchestrator.cli import certificates
from tandem.orchestrator.cli.app import app
from tandem.protos.errors import Unusable


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def run(*arguments: str) -> int:
    """Return the exit code of the command."""
    try:
        app(["certs", *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def test_each_role_has_a_certificate_for_all_names_that_only_its_owner_can_use(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made"
    names = ["--name", "front.example.com", "--name", "10.1.2.3", "--client", "phone"]
    assert run(str(folder), *names, "--days", "30") == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    roles = {"ca", "verifier", "drafter", "orchestrator", "client", "phone"}
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{role}{end}" for role in roles for end in (".pem", "-key.pem")}
    ca = read(folder / "ca.pem")
    for role in roles - {"ca"}:
        certificate = read(folder / f"{role}.pem")
        certificate.verify_directly_issued_by(ca)
        assert certificate.subject.rfc4514_string() == f"CN={role}"
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=29) < left < timedelta(days=31)
        assert stat.S_IMODE((folder / f"{role}-key.pem").stat().st_mode) == 0o600
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = {
            str(value)
            for kind in (x509.DNSName, x509.IPAddress)
            for value in found.get_values_for_type(kind)
        }
        everywhere = {"localhost", "127.0.0.1", "::1", "front.example.com", "10.1.2.3"}
        assert hosts == {role} | (everywhere if role in certificates.SERVICES else set())
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in uses) == (role in certificates.SERVICES)


def test_a_name_may_be_that_of_one_service_alone(tmp_path: Path) -> None:
    names = ["--name", "verifier=gpu.example.com", "--name", "drafter=10.1.2.3", "--name", "all"]
    assert run(str(tmp_path), *names) == 0
    hosts = {}
    for role in certificates.SERVICES:
        found = read(tmp_path / f"{role}.pem").extensions
        names_of = found.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts[role] = set(map(str, names_of.get_values_for_type(x509.DNSName)))
        hosts[role] |= set(map(str, names_of.get_values_for_type(x509.IPAddress)))
        hosts[role] -= set(certificates.EVERYWHERE)
    assert hosts == {
        "verifier": {"verifier", "gpu.example.com", "all"},
        "drafter": {"drafter", "10.1.2.3", "all"},
        "orchestrator": {"orchestrator", "all"},
    }


def test_nothing_is_replaced_unless_it_is_asked_for_and_the_ca_never(tmp_path: Path) -> None:
    assert run(str(tmp_path)) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Unusable, match=r"verifier\.pem.* already exists; --force"):
        certificates.make(tmp_path)
    assert run(str(tmp_path)) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run(str(tmp_path), "--force") == 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    same = {name for name in after if after[name] == before[name]}
    assert same == {"ca.pem", "ca-key.pem"}


def test_certificates_do_not_outlive_their_ca(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"days: 3652 would outlive the CA, .* 20\d\d-"):
        certificates.make(tmp_path, days=3652)
    certificates.make(tmp_path, days=3649)


def test_a_ca_of_another_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    key = rsa.generate_private_key(65537, 2048)
    coded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ca-key.pem").write_bytes(coded)
    with pytest.raises(Unusable, match=r"ca-key\.pem is not an elliptic-curve key"):
        certificates.make(tmp_path, force=True)


def test_one_more_client_does_not_need_new_certificates_of_the_others(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    before = (tmp_path / "verifier.pem").read_bytes()
    assert run(str(tmp_path), "--only", "--client", "phone") == 0
    read(tmp_path / "phone.pem").verify_directly_issued_by(read(tmp_path / "ca.pem"))
    assert (tmp_path / "verifier.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "a@b", "*", "x:1", "=a", "client=a"])
def test_names_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    for arguments in (["--name", name], ["--client", name]):
        assert run(str(tmp_path / "made"), *arguments) == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["orchestrator", "ca", "client"])
def test_a_client_cannot_take_the_name_of_a_role(tmp_path: Path, name: str) -> None:
    assert run(str(tmp_path / "made"), "--client", name) == 1
