"""Clients that may call, from a file that is read again when it changes: by token or certificate.

Knows no protocol. Tokens are in the file as hashes, so that who reads it cannot use them.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from tandem.orchestrator.requests.request import Quota, Request, digest
from tandem.protos.errors import PermissionDenied, Unusable

LOOK_SECONDS = 1.0  # between two looks of those who wait for a change
Right: TypeAlias = Literal["generate", "register"]
GENERATE: Right = "generate"
REGISTER: Right = "register"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

log = structlog.get_logger()


class Identity(BaseModel):
    """What the file has of one client; what is not given is as for all clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = ""
    token_sha256: Sha256 | tuple[Sha256, ...] = ()
    certificate: Name | None = None  # its common name
    may: tuple[Right, ...] = (GENERATE,)
    max_running: int | None = Field(default=None, ge=1)
    max_waiting: int | None = Field(default=None, ge=0)
    weight: float = Field(default=1.0, ge=0.01, le=100)

    @model_validator(mode="after")
    def _can_be_recognised(self) -> Identity:
        if not (self.tokens or self.certificate):
            raise ValueError("needs token_sha256 or certificate")
        return self

    @property
    def tokens(self) -> tuple[str, ...]:
        """Hashes of its tokens."""
        return (self.token_sha256,) if isinstance(self.token_sha256, str) else self.token_sha256

    def check(self, right: Right) -> None:
        """Raise PermissionDenied if it may not do that."""
        if right not in self.may:
            raise PermissionDenied(f"{self.name} may {' and '.join(self.may)}, not {right}")

    def owning(self, request: Request) -> Request:
        """A request of this client: names that it gives subdivide its own share and cache."""
        own = digest(f"identity {self.name}")
        quota = Quota(self.name, self.max_running, self.max_waiting, self.weight)
        client = digest(f"{own.hex()} {request.client.hex()}")
        return replace(request, client=client, share=own, part=request.share, quota=quota)


ENTRIES = TypeAdapter(dict[Name, Identity])


def of_certificate(name: str) -> Identity:
    """Who has a certificate of the CA, where no file has the clients."""
    return Identity.model_construct(name=name, certificate=name, may=(GENERATE, REGISTER))


class Identities:
    """Those of a file. One that cannot be used any more changes nothing, with a warning."""

    def __init__(self, file: Path) -> None:
        """Raises Unusable."""
        self._file = file
        self._stamp = self._look()
        self._entries = read(file)

    def of_token(self, token: str) -> Identity | None:
        """Whose token it is; how long that takes does not depend on the token."""
        self._refresh()
        given, found = hashlib.sha256(token.encode()).hexdigest(), None
        for identity in self._entries.values():
            for known in identity.tokens:
                if secrets.compare_digest(given, known):
                    found = identity
        return found

    def of_certificate(self, name: str) -> Identity | None:
        """Whose certificate has this common name."""
        self._refresh()
        found = (each for each in self._entries.values() if each.certificate == name)
        return next(found, None) if name else None

    async def until_changed(self, identity: Identity) -> None:
        """Wait until the file has this client no more, or as another."""
        while self._entries.get(identity.name) == identity:
            await asyncio.sleep(LOOK_SECONDS)
            self._refresh()

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._entries = read(self._file)
        except Unusable as error:
            log.warning("clients cannot be read again", problem=str(error))

    def _look(self) -> tuple[int, int, int]:
        try:
            status = self._file.stat()
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Has no name twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Called by PyYAML."""
        names = [str(key.value) for key, _ in node.value]
        if len(set(names)) < len(names):
            raise yaml.YAMLError
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read(file: Path) -> dict[str, Identity]:
    """The clients of a file, by their names; raises Unusable, without what the file has."""
    try:
        entries = ENTRIES.validate_python(yaml.load(file.read_text("utf-8"), _Loader))
    except OSError as error:
        raise Unusable(f"clients: {file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise Unusable(f"clients: {file}: {'; '.join(problems)}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # of a date that is none, for example
        raise Unusable(f"clients: {file} is not YAML, or has a name twice") from None
    named = {name: each.model_copy(update={"name": name}) for name, each in entries.items()}
    for kind in ("tokens", "certificates"):
        known = [key for each in named.values() for key in _keys(each, kind)]
        if len(set(known)) < len(known):
            raise Unusable(f"clients: {file}: two clients share one of their {kind}")
    return named


def _keys(identity: Identity, kind: str) -> tuple[str, ...]:
    if kind == "tokens":
        return identity.tokens
    return (identity.certificate,) if identity.certificate else ()
