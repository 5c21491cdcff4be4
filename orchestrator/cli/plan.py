"""Plan which services `tandem up` starts, and with which command lines.

Each flag of `tandem up` is passed on to the service that it concerns. Settings in the environment
or in the settings file take precedence over defaults that are chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tandem import models
from tandem.orchestrator.cli import certificates
from tandem.protos import hub
from tandem.protos.address import joined
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import Likeness, likeness, tokens_by_id
from tandem.protos.service import cores
from tandem.protos.service.config import ExternalSettings, external_settings
from tandem.protos.transport import rpc

HOST = "127.0.0.1"
PORT, HTTP_PORT = 50051, 8000
SHARED_GPU_COST = 1.0  # draft cost if both services take turns on one GPU
# wait for the verifier practically forever, because `tandem up` ends if the verifier cannot start
LOADING_SECONDS = 86400
NO_DRAFTS = Path("none")  # value of --draft that turns drafts off
Setting = Path | str | int | bool | None
QUIET: Mapping[str, Setting] = {"log_level": "warning"}  # all services print to the same terminal


@dataclass(frozen=True)
class Plan:
    """The flags of `tandem up`, and the command lines that follow from them. A default is chosen
    here for each flag that is None. `port` is the port of the client API, or 0 for a free port.
    `threads` is the number of the verifier's threads.

    If only the target is given, drafts come from the method SUFFIX. The embedded draft model is not
    used in this case, because its tokenizer differs from the target's, and drafts that must be
    translated are slower than no drafts.
    """

    target: Path | None = None
    draft: Path | None = None
    port: int | None = None
    cells: int | None = None
    ray: bool | None = None
    threads: int | None = None
    ray_address: str | None = None
    drafter: tuple[str, ...] = ()  # further flags of the drafter
    config: Path | None = None
    certificates: Path | None = None  # folder of the certificates that all connections use
    http_port: int | None = None
    share_ports: bool | None = None

    @cached_property
    def external(self) -> ExternalSettings:
        """The settings in the environment and in the settings file. Raises Unusable."""
        return external_settings(self.config)

    @cached_property
    def models(self) -> tuple[Path, Path | None]:
        """The paths of the target and of the draft model, which are downloaded if they are names on
        the hub. The second path is None if there is no draft model. Raises Unusable.
        """
        target, draft = self._named
        if draft is None and target is None:
            draft = models.DRAFT
        own = hub.served(target or models.TARGET)
        return own, None if draft in (None, NO_DRAFTS) else hub.served(draft)

    @cached_property
    def _named(self) -> tuple[Path | None, Path | None]:
        """The target and the draft model that are named by flags, the environment or the settings
        file.
        """
        target = self.target or self.external.verifier.get("model")
        draft = self.draft or self.external.drafter.get("model")
        return Path(target) if target else None, Path(draft) if draft else None

    def fetch(self) -> None:
        """Download missing models. This call blocks and may take long. Raises Unusable."""
        assert self.models

    @cached_property
    def translates(self) -> bool:
        """Whether the drafter has to translate between its tokenizer and the target's. Raises
        Unusable.
        """
        return likeness(*self._vocabularies) is Likeness.FOREIGN

    @property
    def _speaks(self) -> Path | None:
        """The path of the target if its vocabulary differs from the draft model's, otherwise None.
        Raises Unusable.
        """
        spoken, own = self._vocabularies
        return None if spoken == own else self.models[0]

    @cached_property
    def _vocabularies(self) -> tuple[dict[int, str], dict[int, str]]:
        """The vocabularies of the target and of the draft model, as maps from token ID to token.
        Both vocabularies are empty if there is no draft model. Raises Unusable.
        """
        target, draft = self.models
        return (tokens_by_id(target), tokens_by_id(draft)) if draft else ({}, {})

    @property
    def _draft_cost(self) -> str | None:
        """The draft cost to configure if both services share a GPU. If the services share no GPU,
        or if the cost is already configured, return None, so that no flag for the cost is passed to
        the drafter.
        """
        own = self.external.drafter
        devices = {_device(own), _device(self.external.verifier)}
        shared = len(devices) == 1 and "cpu" not in devices
        return str(SHARED_GPU_COST) if shared and "draft_cost" not in own else None

    def _http_port(self, host: str) -> int | None:
        """Choose the port of the HTTP API: any free port if `port` is 0, otherwise HTTP_PORT.
        Return None if HTTP_PORT is taken, or if a flag or a setting gives the port.
        """
        if self.http_port is not None or "http_port" in self.external.orchestrator:
            return None
        try:
            return rpc.free_port(host, 0 if self.port == 0 else HTTP_PORT)
        except Unusable:
            return None

    def services(self) -> list[tuple[str, str, list[str]]]:
        """Return the role, module and flags of each service, the orchestrator last. The chosen
        ports are free at the time of the call. Raises Unusable.
        """
        target, draft = self.models
        verifier, drafter = self.external.verifier, self.external.drafter
        addresses = _address(verifier), _address(drafter)
        verifying = _flags(
            verifier,
            {"model": self.target and target, "threads": self.threads, "port": addresses[0][1]},
            {"model": target, "threads": max(1, cores.usable(numa=_numa(verifier)) - 1)},
        )
        drafting = _flags(
            drafter,
            {"model": self.draft and draft, "port": addresses[1][1]},
            {"model": draft, "threads": 1, "speaks": self._speaks, "draft-cost": self._draft_cost},
        )
        services = [
            ("verifier", "tandem.verifier_service", verifying),
            ("drafter", "tandem.drafter_service", [*drafting, *self.drafter]),
            ("orchestrator", "tandem.orchestrator", self._fronting(*addresses)),
        ]
        return [
            (role, module, [*flags, *self._tls(role)])
            for role, module, flags in services
            if role != "drafter" or draft
        ]

    def _fronting(self, verifier: tuple[str, int], drafter: tuple[str, int]) -> list[str]:
        """Return the orchestrator's command-line flags, given the addresses of verifier and
        drafter.
        """
        (target, draft), front = self.models, self.external.orchestrator
        client = _address(front if self.port is None else {**front, "port": self.port}, PORT)
        drafts: dict[str, Setting] = {"drafter": joined(*drafter)}
        if draft is None:
            plain = self._named[1] == NO_DRAFTS
            drafts = {"draft_levels": 0} if plain else {"draft_method": "suffix"}
        return _flags(
            front,
            {
                "port": client[1],
                "http-port": self.http_port,
                "cells": self.cells,
                "share_ports": self.share_ports,
                "ray": self.ray,
                "ray_address": self.ray_address,
            },
            {
                "verifier": joined(*verifier),
                "start_seconds": LOADING_SECONDS,
                "tokenizer": target,
                "http-port": self._http_port(client[0]),
                **drafts,
            },
        )

    def _tls(self, role: str) -> list[str]:
        """Return the flags for a service's certificate. Return no flags if there is no folder of
        certificates, or if the service's own settings configure TLS.
        """
        if self.certificates is None or "tls_ca" in getattr(self.external, role):
            return []
        return certificates.flags(self.certificates, role)


def _device(given: Mapping[str, Setting]) -> str:
    """Return the device on which a service computes. The name `cuda` is returned as `cuda:0`, the
    first GPU.
    """
    device = str(given.get("device", "cpu"))
    return "cuda:0" if device == "cuda" else device


def _numa(given: Mapping[str, Setting]) -> int | None:
    """Return the NUMA node to which a service is bound, or None if no node is configured. For
    an invalid value, this function also returns None, because the service itself rejects the value.
    """
    node = str(given.get("numa", ""))
    return int(node) if node.isdecimal() else None


def _address(given: Mapping[str, Setting], port: int = 0) -> tuple[str, int]:
    """Return the host and a free port at which a service is to listen. Raises Unusable."""
    host, wanted = str(given.get("host", HOST)), given.get("port", port)
    try:
        return host, rpc.free_port(host, int(str(wanted)))
    except (ValueError, OverflowError) as error:
        raise Unusable(f"port {wanted} is not a port number") from error


def _flags(
    outside: Mapping[str, object], given: Mapping[str, Setting], chosen: Mapping[str, Setting]
) -> list[str]:
    """Return settings as command-line flags. A default in `chosen` applies unless `outside` (the
    environment or the settings file) has the same setting. A value in `given` overrides both
    `chosen` and `outside`.
    """
    chosen = {**chosen, **QUIET}
    settings = {name: value for name, value in chosen.items() if name not in outside}
    settings |= {name: value for name, value in given.items() if value is not None}
    flags = []
    for name, value in ((name.replace("_", "-"), value) for name, value in settings.items()):
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            flags.append(f"--{name}={value}")
    return flags
