"""The clients that may call the service, recognised by a token or a certificate. The file that
lists the clients is read again when it changes.

The module knows no protocol. The file has hashes instead of tokens, so whoever reads the file
learns no token.
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
from tandem.protos.service.config import message

POLL_SECONDS = 1.0  # seconds between two checks of the file while waiting for a change
Right: TypeAlias = Literal["generate", "register"]
GENERATE: Right = "generate"
REGISTER: Right = "register"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

log = structlog.get_logger()


class Identity(BaseModel):
    """The file's entry for one client. For limits that the entry leaves out, the limits of all
    clients apply.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = ""
    token_sha256: Sha256 | tuple[Sha256, ...] = ()
    certificate: Name | None = None  # common name of the client's certificate
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
        """The hashes of the client's tokens."""
        return (self.token_sha256,) if isinstance(self.token_sha256, str) else self.token_sha256

    def check(self, right: Right) -> None:
        """Raise PermissionDenied if the client does not have this right."""
        if right not in self.may:
            raise PermissionDenied(f"{self.name} may {' and '.join(self.may)}, not {right}")

    def owning(self, request: Request) -> Request:
        """Mark a request as this client's. Client names in the request then only subdivide the
        client's own places and cache.
        """
        own = digest(f"identity {self.name}")
        quota = Quota(self.name, self.max_running, self.max_waiting, self.weight)
        scope = digest(f"{own.hex()} {request.cache_scope.hex()}")
        named = replace(request, client_id=own, subclient_id=request.client_id)
        return replace(named, cache_scope=scope, quota=quota)


ENTRIES = TypeAdapter(dict[Name, Identity])


def of_certificate(name: str) -> Identity:
    """Return the identity of a client with a certificate of the CA, if no file lists the clients.
    Such a client has all rights.
    """
    return Identity.model_construct(name=name, certificate=name, may=(GENERATE, REGISTER))


class Identities:
    """The clients that a file lists. If the file becomes unusable, a warning is logged and the
    clients stay as they were.
    """

    def __init__(self, file: Path) -> None:
        """Read the file. Raises Unusable."""
        self._file = file
        self._stamp = self._look()
        self._entries = read(file)

    def of_token(self, token: str) -> Identity | None:
        """Return the client that has a token; None for an unknown token. The time of the lookup
        does not depend on the token.
        """
        self._refresh()
        given, found = hashlib.sha256(token.encode()).hexdigest(), None
        for identity in self._entries.values():
            for known in identity.tokens:
                if secrets.compare_digest(given, known):
                    found = identity
        return found

    def of_certificate(self, name: str) -> Identity | None:
        """Return the client whose certificate has a common name; None for an unknown name."""
        self._refresh()
        found = (each for each in self._entries.values() if each.certificate == name)
        return next(found, None) if name else None

    async def until_changed(self, identity: Identity) -> None:
        """Wait until the file changes or drops the entry of a client."""
        while self._entries.get(identity.name) == identity:
            await asyncio.sleep(POLL_SECONDS)
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


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A YAML loader that refuses mappings in which a name occurs twice. PyYAML itself would use the
    last value.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raises YAMLError if a name occurs twice in it. PyYAML calls this
        method.
        """
        names = [str(key.value) for key, _ in node.value]
        if len(set(names)) < len(names):
            raise yaml.YAMLError
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read(file: Path) -> dict[str, Identity]:
    """Return the clients that a file lists, by their names. Raises Unusable with a text that quotes
    none of the file's values.
    """
    try:
        entries = ENTRIES.validate_python(yaml.load(file.read_text("utf-8"), _Loader))
    except OSError as error:
        raise Unusable(f"clients: {file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, each['loc']))}: {message(each)}" for each in error.errors()
        )
        raise Unusable(f"clients: {file}: {'; '.join(problems)}") from None
    # PyYAML raises errors of several classes, for example ValueError for an invalid date
    except (yaml.YAMLError, ValueError, RecursionError):
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
