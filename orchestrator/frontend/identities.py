"""The clients that may call the service, recognised by a token or a certificate. The file that
lists the clients is read again when it changes.

The module does not depend on gRPC or HTTP. The file contains hashes of the tokens, so that its
readers cannot learn a token.
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
    """One client's entry in the clients file. If the entry does not set a limit, the default limit
    per client applies.
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
        """Raise PermissionDenied if the client does not have the given right."""
        if right not in self.may:
            raise PermissionDenied(f"{self.name} may {' and '.join(self.may)}, not {right}")

    def owning(self, request: Request) -> Request:
        """Return a request with this client as its owner. If the request itself names a client,
        that name denotes a subclient, which shares this client's quota but has its own cached
        prefixes.
        """
        own = digest(f"identity {self.name}")
        quota = Quota(self.name, self.max_running, self.max_waiting, self.weight)
        scope = digest(f"{own.hex()} {request.cache_scope.hex()}")
        named = replace(request, client_id=own, subclient_id=request.client_id)
        return replace(named, cache_scope=scope, quota=quota)


ENTRIES = TypeAdapter(dict[Name, Identity])


def of_certificate(name: str) -> Identity:
    """Return an identity with all rights for a client whose certificate was signed by the CA. Only
    services without a clients file use this function.
    """
    return Identity.model_construct(name=name, certificate=name, may=(GENERATE, REGISTER))


class Identities:
    """The clients listed in a file. If the file becomes invalid, a warning is logged and the
    previously read clients stay valid.
    """

    def __init__(self, file: Path) -> None:
        """Read the clients file. Raises Unusable if the file is invalid."""
        self._file = file
        self._stamp = self._look()
        self._entries = read(file)

    def of_token(self, token: str) -> Identity | None:
        """Return the client that owns a token; None for an unknown token. To prevent timing
        attacks, the duration of the lookup does not depend on the token.
        """
        self._refresh()
        given, found = hashlib.sha256(token.encode()).hexdigest(), None
        for identity in self._entries.values():
            for known in identity.tokens:
                if secrets.compare_digest(given, known):
                    found = identity
        return found

    def of_certificate(self, name: str) -> Identity | None:
        """Return the client whose certificate has this common name; None for an unknown name."""
        self._refresh()
        found = (each for each in self._entries.values() if each.certificate == name)
        return next(found, None) if name else None

    async def until_changed(self, identity: Identity) -> None:
        """Wait until the clients file changes or drops the entry of a client."""
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
    """A YAML loader that refuses mappings in which a key occurs twice. PyYAML itself would silently
    use the last value.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a YAML node. Raises YAMLError if a key occurs twice in it. PyYAML
        calls this method for every mapping.
        """
        names = [str(key.value) for key, _ in node.value]
        if len(set(names)) < len(names):
            raise yaml.YAMLError
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read(file: Path) -> dict[str, Identity]:
    """Return the clients listed in a file, keyed by name. Raises Unusable if the file is invalid;
    the message quotes no values of the file.
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
        raise Unusable(f"clients: {file} is not YAML, or contains a name twice") from None
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
