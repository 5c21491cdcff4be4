"""Types for settings that contain addresses, and the settings that every service has for its ports:
where the service listens, and how its ports are protected.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings

from tandem.protos.address import check_source, is_loopback, split
from tandem.protos.tls import Tls


def _listed(check: Callable[[str], object]) -> BeforeValidator:
    """Return a validator for addresses that are given as a list, as in a YAML file, or as
    comma-separated text. `check` must raise ValueError for a wrong address.
    """

    def listed(given: object) -> object:
        given = given.split(",") if given and isinstance(given, str) else given or []
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            return given
        names = [each.strip() for each in given]
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("has an address that is empty or listed twice")
        for name in names:
            check(name)
        return ",".join(names)

    return BeforeValidator(listed)


Addresses = Annotated[str, _listed(split)]
Sources = Annotated[str, _listed(check_source)]


class ListeningSettings(BaseSettings):
    """The settings of a service's ports. A service that other machines can reach needs TLS, unless
    `insecure` is set.
    """

    host: str = Field(default="127.0.0.1", description="address to listen on")
    tls_cert: Path | None = Field(
        default=None, description="PEM file of the service's certificate, for all connections"
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's key")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the CA that signs the certificates of all peers"
    )
    insecure: bool = Field(
        default=False, description="listen beyond loopback without TLS and authentication"
    )
    metrics_host: str | None = Field(
        default=None, description="address of the metrics page; by default the same as host"
    )
    metrics_tls: bool = Field(
        default=False, description="serve the metrics page with TLS and require client certificates"
    )

    @property
    def tls(self) -> Tls | None:
        """The certificate files for encrypted connections; None if the service does not use TLS."""
        return Tls(self.tls_ca, self.tls_cert, self.tls_key) if self.tls_ca else None

    @model_validator(mode="after")
    def _has_all_files_or_none(self) -> ListeningSettings:
        files = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        missing = [name for name, path in files.items() if path is None]
        if 0 < len(missing) < len(files):
            raise ValueError(
                f"{' and '.join(missing)} missing: set tls_cert, tls_key and tls_ca, or none"
            )
        if self.metrics_tls and missing:
            raise ValueError("metrics_tls needs tls_cert, tls_key and tls_ca")
        return self

    @model_validator(mode="after")
    def _is_protected_beyond_loopback(self) -> ListeningSettings:
        for name, host in (("host", self.host), ("metrics_host", self.metrics_host)):
            if not (self.tls_ca or self.insecure or host is None or is_loopback(host)):
                wanted = "tls_cert, tls_key and tls_ca (`tandem certs` makes them), or insecure"
                raise ValueError(f"{name} {host} is beyond loopback, which needs {wanted}")
        return self
