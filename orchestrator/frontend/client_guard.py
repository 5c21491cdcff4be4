"""Authenticate callers of the client API and of drafter registration, and check their rights."""

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


class Authenticator(Protocol):
    """Identifies the caller of a gRPC method or an HTTP request."""

    def identity(self, context: Any) -> Identity | None:
        """Return the identity of the caller of a gRPC method; None if the service does not
        authenticate clients. Raises Unauthenticated or PermissionDenied if the caller is not
        accepted.
        """

    def http_identity(self, authorization: str, certificate: str) -> Identity | None:
        """Identify the caller of an HTTP request by its authorization header or by the common name
        of its certificate. Returns None or raises an error under the same conditions as `identity`.
        """

    def owner(self, context: Any) -> Owner:
        """Return the caller of a gRPC method as the owner of the drafters that it registers."""


class NoAuthentication:
    """Accepts every caller, without authentication."""

    def identity(self, context: Any) -> Identity | None:
        """Return None, because callers are not authenticated."""
        return None

    def http_identity(self, authorization: str, certificate: str) -> Identity | None:
        """Return None, because callers are not authenticated."""
        return None

    def owner(self, context: Any) -> Owner:
        """Return an anonymous owner, because callers are not authenticated."""
        return Owner()


class CertificateAuthenticator:
    """Accepts every caller whose client certificate was signed by the configured CA."""

    def identity(self, context: Any) -> Identity | None:
        """Return the caller's identity, taken from its client certificate."""
        return _certified(common_name(context))

    def http_identity(self, authorization: str, certificate: str) -> Identity | None:
        """Return the caller's identity, taken from its client certificate."""
        return _certified(certificate)

    def owner(self, context: Any) -> Owner:
        """Return the client named by the certificate, as the owner of the drafters that it
        registers. The client's right to register drafters is never revoked.
        """
        return Owner(common_name(context))


def _certified(name: str) -> Identity:
    if name:
        return of_certificate(name)
    raise Unauthenticated("a client certificate is needed here")


class ClientFileAuthenticator:
    """Accepts the clients listed in a file, which gives each client its own rights."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def identity(self, context: Any) -> Identity | None:
        """Identify the caller by its token or, if it sends no token, by its certificate. If the
        caller has a certificate, an unknown token is ignored, because a drafter may send a token
        that is meant for another orchestrator.
        """
        token, name = bearer_token(context), common_name(context)
        if token and not (name and self._identities.of_token(token) is None):
            return self._owner_of(token)
        if name:
            if identity := self._identities.of_certificate(name):
                return identity
            raise PermissionDenied(f"the certificate of {name!r} belongs to no known client")
        raise Unauthenticated("a token (`authorization: Bearer TOKEN`) or a certificate is needed")

    def http_identity(self, authorization: str, certificate: str) -> Identity | None:
        """Identify the caller by its token."""
        if token := token_of(authorization):
            return self._owner_of(token)
        raise Unauthenticated("a token is needed: `Authorization: Bearer TOKEN`")

    def _owner_of(self, token: str) -> Identity:
        if identity := self._identities.of_token(token):
            return identity
        raise Unauthenticated("the token belongs to no known client")

    def owner(self, context: Any) -> Owner:
        """Return the caller as the owner of the drafters that it registers. The caller's right to
        register drafters is revoked as soon as the clients file changes or drops the caller's
        entry.
        """
        identity = self.identity(context)
        assert identity
        return Owner(identity.name, partial(self._identities.until_changed, identity))


def authentication(config: OrchestratorConfig) -> Authenticator:
    """Return the configured authenticator. Raises Unusable if the clients file is invalid."""
    if config.clients:
        return ClientFileAuthenticator(Identities(config.clients))
    return CertificateAuthenticator() if config.tls else NoAuthentication()


class ClientGuard:
    """Checks the authentication and the rights of callers of the client API. The server calls
    `check` before every gRPC call.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def check(self, method: str, context: Any) -> None:
        """Raise Unauthenticated or PermissionDenied if a caller may not call a method. Every
        authenticated client may call the methods that need no right, such as reflection. Health
        checks need no authentication.
        """
        if method.startswith(HEALTH):
            return
        identity = self._authenticator.identity(context)
        right = RIGHTS.get(method.split("/")[1])
        if identity and right:
            identity.check(right)
