"""Who may call the client API and register drafters over gRPC: known clients, each what it may."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.registration import Owner
from tandem.orchestrator.frontend.identities import (
    GENERATE,
    REGISTER,
    Identities,
    Identity,
    of_certificate,
)
from tandem.protos.errors import PermissionDenied, Unauthenticated
from tandem.protos.transport.guard import HEALTH, bearer_token, common_name, token_of

RIGHTS = {
    "tandem.v1.OrchestratorService": GENERATE,
    "tandem.v1.RegistrationService": REGISTER,
}


class Callers(Protocol):
    """Knows who calls."""

    def identity(self, context: Any) -> Identity | None:
        """Who it is, None where nobody is asked; raises Unauthenticated, PermissionDenied."""

    def authorized(self, authorization: str, certificate: str) -> Identity | None:
        """The same of a call over HTTP, by its header or its certificate's common name."""

    def owner(self, context: Any) -> Owner:
        """The same, as the owner of drafters."""


class Anybody:
    """There is no authentication."""

    def identity(self, context: Any) -> Identity | None:
        """Nobody is asked."""
        return None

    def authorized(self, authorization: str, certificate: str) -> Identity | None:
        """Nobody is asked."""
        return None

    def owner(self, context: Any) -> Owner:
        """Nobody is asked."""
        return Owner()


class OwnersOfCertificates:
    """Who has a certificate of the CA."""

    def identity(self, context: Any) -> Identity | None:
        """As its certificate has it."""
        return _certified(common_name(context))

    def authorized(self, authorization: str, certificate: str) -> Identity | None:
        """As its certificate has it."""
        return _certified(certificate)

    def owner(self, context: Any) -> Owner:
        """As long as the call lasts."""
        return Owner(common_name(context))


def _certified(name: str) -> Identity:
    if name:
        return of_certificate(name)
    raise Unauthenticated("a client certificate is needed here")


class KnownClients:
    """Those of a file."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def identity(self, context: Any) -> Identity | None:
        """By its token, or else by its certificate: a drafter may have a token of others."""
        token, name = bearer_token(context), common_name(context)
        if token and not (name and self._identities.of_token(token) is None):
            return self._owner_of(token)
        if name:
            if identity := self._identities.of_certificate(name):
                return identity
            raise PermissionDenied(f"the certificate of {name!r} is not that of a client")
        raise Unauthenticated("a token is needed, `authorization: Bearer TOKEN`, or a certificate")

    def authorized(self, authorization: str, certificate: str) -> Identity | None:
        """By its token."""
        if token := token_of(authorization):
            return self._owner_of(token)
        raise Unauthenticated("a token is needed: `Authorization: Bearer TOKEN`")

    def _owner_of(self, token: str) -> Identity:
        if identity := self._identities.of_token(token):
            return identity
        raise Unauthenticated("the token is not that of a client")

    def owner(self, context: Any) -> Owner:
        """Until the file has it no more, or as another."""
        identity = self.identity(context)
        assert identity
        return Owner(identity.name, partial(self._identities.until_changed, identity))


def callers_of(config: OrchestratorConfig) -> Callers:
    """Those that are known by the settings; raises Unusable."""
    if config.clients:
        return KnownClients(Identities(config.clients))
    return OwnersOfCertificates() if config.tls else Anybody()


class ClientGuard:
    """Asked before every call."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def check(self, method: str, context: Any) -> None:
        """As of every guard; what no right is for, reflection above all, every client may call."""
        if method.startswith(HEALTH):
            return
        identity = self._callers.identity(context)
        right = RIGHTS.get(method.split("/")[1])
        if identity and right:
            identity.check(right)
