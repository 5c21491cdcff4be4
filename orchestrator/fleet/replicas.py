"""Checks drafters and verifiers: whether their models fit together, and whether they can serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.membership import Acceptance, Membership, PerAddress
from tandem.orchestrator.fleet.probes import DrafterProbe, VerifierProbe
from tandem.orchestrator.fleet.registration import Registry
from tandem.protos.errors import IncompatibleModels, TandemError, Unusable
from tandem.protos.fingerprint import fingerprint
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import ModelDescription
from tandem.protos.wire.registration import registered_name

STATUS_SECONDS = 2.0
PAUSE_SECONDS = 0.1  # seconds between two attempts to reach a verifier at startup
PROBE_PAUSE_SECONDS = 0.25  # seconds between two probes of the verifiers
# time limit of a probe; short, so that a lost verifier makes health NOT_SERVING within 2 s
PROBE_SECONDS = 1.0
MAX_REPLACED_PROBES = 20  # give up if this many successive probes find only another model

log = structlog.get_logger()


class ModelProbe(Protocol):
    """Asks a service which model it has, and whether it serves."""

    async def describe(self, seconds: float) -> ModelDescription:
        """Return the model's description; waits up to `seconds` seconds for the service."""

    async def serving(self, seconds: float) -> bool:
        """Tell whether the service reports within `seconds` seconds that it serves."""


@dataclass(frozen=True, slots=True)
class RegisteredProbe:
    """Answers probes of a registered drafter from its newest message, without calling it."""

    registry: Registry
    name: str

    async def describe(self, seconds: float) -> ModelDescription:
        """Return the model as the drafter described it last; raises Unavailable."""
        return self.registry.find(self.name).model

    async def serving(self, seconds: float) -> bool:
        """Return True, because a registered drafter that does not serve is removed."""
        return True


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The status of a replica. `model` is None if the replica did not answer. `problem` is the
    reason why the replica is not used, or empty if it is used. `draft_tokens` is the number of a
    drafter's draft tokens that were verified, and `accepted_tokens` is how many of them were
    accepted.
    """

    address: str
    model: ModelDescription | None
    round_trip_seconds: float
    problem: str = ""
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """The accepted share of verified draft tokens, or None if no token was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe of all verifiers. `serving` tells whether at least one verifier serves
    the expected model. `replaced` tells whether all verifiers that answer have another model with
    the same tokenizer.
    """

    serving: bool
    replaced: bool


class Replicas:
    """The current verifiers, which all serve the same model, and the current drafters."""

    def __init__(
        self, config: OrchestratorConfig, membership: Membership, registry: Registry
    ) -> None:
        self._config = config
        self._membership = membership
        self._registry = registry
        self.fingerprint = fingerprint(config.tokenizer)
        self.model_identity = ""  # identity of the target at the start
        self.acceptance = Acceptance()
        self.verifiers: Mapping[str, VerifierProbe] = {}
        self.drafters: Mapping[str, ModelProbe] = {}

    async def follow(self) -> None:
        """Keep a probe for each member replica, until cancelled."""
        async with (
            PerAddress(self._verifier) as verifiers,
            PerAddress(self._drafter) as drafters,
        ):
            self.verifiers, self.drafters = verifiers.items, drafters.items
            known = None
            while True:
                known = await self._membership.other_than(known)
                self.acceptance.retain(known.drafters)
                await verifiers.update(known.verifiers)
                await drafters.update(known.drafters)

    async def check_models(self) -> ModelDescription:
        """Wait for a verifier, check that its tokenizer is the orchestrator's, and return the
        target's description. An absent drafter, or one with another tokenizer, is no error.

        Raises Unusable if no verifier answers, and IncompatibleModels if the tokenizers differ.
        """
        config = self._config
        target = await self._target()
        self.model_identity = target.identity
        _check_same(config.tokenizer, self.fingerprint, target)
        draft = await _first(self.drafters, min(STATUS_SECONDS, config.start_seconds))
        if draft and (problem := self._other_tokens(draft)):
            log.warning("a drafter does not fit", model=draft.name, problem=problem)
        elif not draft and config.drafter:
            log.warning("no drafter answers; decoding without drafts", address=config.drafter)
        return target

    async def status(self) -> tuple[list[ReplicaStatus], list[ReplicaStatus]]:
        """Return the status of each verifier and of each drafter."""
        verifiers, drafters = await asyncio.gather(
            asyncio.gather(*(_status(*each, self._other_model) for each in self.verifiers.items())),
            asyncio.gather(*(_status(*each, self._other_tokens) for each in self.drafters.items())),
        )
        counts = (self.acceptance.of(each.address) for each in drafters)
        return verifiers, [
            replace(each, draft_tokens=verified, accepted_tokens=accepted)
            for each, (verified, accepted) in zip(drafters, counts, strict=True)
        ]

    def _other_model(self, model: ModelDescription) -> str:
        same = model.identity == self.model_identity
        return "" if same else f"another model than at the start ({model.identity})"

    def _other_tokens(self, model: ModelDescription) -> str:
        same = model.tokenizer_fingerprint == self.fingerprint
        return "" if same else f"another tokenizer ({model.tokenizer_fingerprint})"

    async def probe_verifiers(self, seconds: float) -> ProbeResult:
        """Probe all verifiers, and ignore those that do not answer within `seconds` seconds."""
        verifiers = self.verifiers.values()
        models, up = await asyncio.gather(
            asyncio.gather(*(_described(each, seconds) for each in verifiers)),
            asyncio.gather(*(each.serving(seconds) for each in verifiers)),
        )
        known = [(model, serves) for model, serves in zip(models, up, strict=True) if model]
        ours = [serves for model, serves in known if not self._other_model(model)]
        same_tokens = not any(self._other_tokens(model) for model, _ in known)
        return ProbeResult(any(ours), bool(known) and not ours and same_tokens)

    async def report_verifiers(self, health: Health) -> None:
        """Report to `health` whether at least one verifier serves. Raises Unusable once all
        verifiers have another model, because then no request can be served. After a restart by its
        supervisor, the orchestrator serves the new model.
        """
        replaced = 0  # number of probes in a row that found another model
        while replaced < MAX_REPLACED_PROBES:
            found = await self.probe_verifiers(PROBE_SECONDS)
            health.report("verifiers", None if found.serving else "no verifier serves")
            replaced = replaced + 1 if found.replaced else 0
            await asyncio.sleep(PROBE_PAUSE_SECONDS)
        raise Unusable(
            "all verifiers serve another model than at the start; restart the orchestrator"
        )

    @asynccontextmanager
    async def _verifier(self, address: str) -> AsyncIterator[VerifierProbe]:
        async with rpc.connect(address, self._config.tls, "verifier") as channel:
            yield VerifierProbe(channel)

    @asynccontextmanager
    async def _drafter(self, address: str) -> AsyncIterator[ModelProbe]:
        if name := registered_name(address):
            yield RegisteredProbe(self._registry, name)
            return
        async with rpc.connect(address, self._config.tls, "drafter") as channel:
            yield DrafterProbe(channel)

    async def _target(self) -> ModelDescription:
        until = time.monotonic() + self._config.start_seconds
        while (left := until - time.monotonic()) > 0:
            if target := await _first(self.verifiers, min(left, STATUS_SECONDS)):
                return target
            await asyncio.sleep(min(left, PAUSE_SECONDS))
        raise Unusable(f"no verifier answers at {self._config.verifier}")


async def _described(client: ModelProbe, seconds: float) -> ModelDescription | None:
    """Return the model of a service, or None if the service does not answer."""
    with suppress(TandemError):
        return await client.describe(seconds)
    return None


async def _first(clients: Mapping[str, ModelProbe], seconds: float) -> ModelDescription | None:
    """Return the model of the first service that answers, or None if no service answers."""
    asking = [asyncio.create_task(client.describe(seconds)) for client in clients.values()]
    try:
        for answer in asyncio.as_completed(asking):
            with suppress(TandemError):
                return await answer
        return None
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _status(
    address: str, client: ModelProbe, find_problem: Callable[[ModelDescription], str]
) -> ReplicaStatus:
    began = time.monotonic()
    serving = asyncio.create_task(client.serving(STATUS_SECONDS))
    try:
        model = await client.describe(STATUS_SECONDS)
        seconds = time.monotonic() - began
        problem = find_problem(model) or ("" if await serving else "not serving")
        return ReplicaStatus(address, model, seconds, problem)
    except TandemError:
        return ReplicaStatus(address, None, 0.0, f"no answer in {STATUS_SECONDS:.0f} s")
    finally:
        serving.cancel()


def _check_same(name: Path | str, tokenizer_fingerprint: str, target: ModelDescription) -> None:
    if tokenizer_fingerprint != target.tokenizer_fingerprint:
        prints = f"{tokenizer_fingerprint}, {target.tokenizer_fingerprint}"
        raise IncompatibleModels(f"the tokenizers of {name} and {target.name} differ ({prints})")
