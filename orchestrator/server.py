"""Puts a cell together: relays, client API and metrics, all on one event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TypeAlias

import structlog
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.discovery import Discovery
from tandem.orchestrator.fleet.fleet_metrics import FleetMetrics
from tandem.orchestrator.fleet.registration import RegistrationService, Registry, Terms
from tandem.orchestrator.fleet.replicas import Replicas
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.client_guard import Authenticator, ClientGuard, authentication
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.servicer import OrchestratorService
from tandem.orchestrator.frontend.status import Overview, Recorder
from tandem.orchestrator.http import server as http_server
from tandem.orchestrator.http.app import HttpApi
from tandem.orchestrator.http.delivery import Frontend
from tandem.orchestrator.http.server import with_host_check
from tandem.orchestrator.links.relays import relaying
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.page.served import add_status_pages
from tandem.orchestrator.requests.chat import ChatTemplate, Formats, load_chat_template
from tandem.orchestrator.requests.checks import ServedModel
from tandem.orchestrator.requests.grammars import trying
from tandem.orchestrator.requests.text import load_tokenizer, longest_token, special_tokens
from tandem.orchestrator.rounds.relay import Services
from tandem.protos.address import is_loopback
from tandem.protos.generation import NO_DEFAULTS
from tandem.protos.service import process
from tandem.protos.service.about import report_model
from tandem.protos.service.drain import Drain
from tandem.protos.service.pages import Pages
from tandem.protos.service.probes import add_probes
from tandem.protos.service.tasks import background
from tandem.protos.tls import server_context
from tandem.protos.transport import rpc
from tandem.protos.transport.calls import CallMetrics
from tandem.protos.transport.health import Health
from tandem.protos.types import DraftShape, Method, ModelDescription, Schedule

SERVICE = "/tandem.v1.OrchestratorService/"
# the API methods whose calls count as requests
ANSWERING = (f"{SERVICE}Generate", f"{SERVICE}StreamGenerate")
MAX_POLLS = 20  # maximum number of connection checks at startup; takes about two seconds
Announce: TypeAlias = Callable[..., None]
log = structlog.get_logger()


def registration(
    config: OrchestratorConfig,
    target: ModelDescription,
    registered: Registry,
    authenticator: Authenticator,
) -> tuple[RegistrationService, ...]:
    """Return the gRPC service at which drafters register, or an empty tuple if no drafter may
    register. A cell that shares its port with other cells accepts no drafters.
    """
    if config.share_ports or (config.registration_token is None and config.clients is None):
        return ()
    secret = config.registration_token
    token = secret.get_secret_value() if secret else None
    terms = Terms(token, config.max_registered, target, authenticator.owner)
    return (RegistrationService(registered, terms),)


def served_model(
    config: OrchestratorConfig, target: ModelDescription, tokenizer: Tokenizer
) -> ServedModel:
    """Return the model and the settings that requests are checked against."""
    shape = DraftShape(
        config.draft_levels,
        config.draft_branches,
        config.draft_nodes,
        Method[config.draft_method.upper()],
        schedule=Schedule[config.draft_schedule.upper()],
    )
    max_prompt_bytes = target.context_length * longest_token(tokenizer)
    makers = target.generation if config.generation_config == "auto" else NO_DEFAULTS
    if makers != NO_DEFAULTS:
        chosen = {name: value for name, value in asdict(makers).items() if value}
        log.info("the model's own defaults are used", **chosen)
    return ServedModel(target, shape, max_prompt_bytes, special_tokens(tokenizer), makers)


def chat_of(config: OrchestratorConfig) -> ChatTemplate:
    """Return the chat template, with the formats of tool calls and reasoning; raises Unusable."""
    formats = Formats(config.tool_format, config.reasoning_format)
    return load_chat_template(config.tokenizer, formats)


def admission_of(config: OrchestratorConfig, metrics: FrontMetrics) -> Admission:
    """Return the admission control, which limits requests in total and per client."""
    each = Limits(*config.each_client, "_per_client")
    return Admission(Limits(config.max_running, config.max_waiting), each, metrics)


def security_of(config: OrchestratorConfig, authenticator: Authenticator) -> rpc.Security:
    """Return the security settings of the client API's ports."""
    asked = config.clients is None
    return rpc.Security(config.tls, ClientGuard(authenticator), asked, config.certificate_port)


@asynccontextmanager
async def http_port(
    config: OrchestratorConfig, api: HttpApi, announce: Announce
) -> AsyncIterator[None]:
    """Serve the HTTP API inside this context if a port is configured; raises Unusable."""
    if config.http_port is None:
        yield
        return
    asked = ssl.CERT_REQUIRED if config.clients is None else ssl.CERT_NONE
    tls = server_context(config.tls, asked) if config.tls else None
    app = api.app()
    if is_loopback(config.host) and not (config.tls or config.clients):
        app = with_host_check(app)
    host, port, shared = config.host, config.http_port, config.share_ports
    async with http_server.serving(app, host, port, tls, shared) as url:
        announce("http", role="orchestrator", address=f"{url}/v1")
        yield


@asynccontextmanager
async def following_fleet(
    config: OrchestratorConfig,
    discovery: Discovery,
    registered: Registry,
    registry: CollectorRegistry,
) -> AsyncIterator[tuple[Replicas, ModelDescription]]:
    """Keep track of the replicas and their models inside this context. Yields the replicas and the
    model that the verifiers serve; raises Unusable or IncompatibleModels.
    """
    async with discovery.running() as membership:
        replicas = Replicas(config, membership, registered)
        fleet = FleetMetrics(registry, membership, replicas.acceptance, config.expected)
        async with background(replicas.follow(), fleet.follow(replicas)):
            target = await replicas.check_models()
            report_model(registry, target)
            yield replicas, replace(target, name=config.served_model_name or target.name)


async def wait_for_services(services: Services, drafting: bool) -> None:
    """Wait for a verifier and, if `drafting`, for a drafter, so that the first request has drafts.
    The wait is limited to about two seconds, because a service may be down.
    """
    for _ in range(MAX_POLLS):
        if services.verifier.connected and (services.drafter.connected or not drafting):
            return
        await asyncio.sleep(rpc.POLL_SECONDS)


@asynccontextmanager
async def serving(
    config: OrchestratorConfig,
    registry: CollectorRegistry,
    drain: Drain | None = None,
    pages: Pages | None = None,
    announce: Announce = process.announce,
) -> AsyncIterator[str]:
    """Serve the client API inside this context; yields its address. Adds the status pages and
    probes to `pages`, and announces the HTTP port. Raises Unusable or IncompatibleModels.
    """
    tokenizer, chat = load_tokenizer(config.tokenizer), chat_of(config)
    discovery, authenticator = Discovery(config.verifiers, config.drafters), authentication(config)
    registered = Registry(discovery.register, discovery.unregister)
    async with following_fleet(config, discovery, registered, registry) as (replicas, target):
        metrics = FrontMetrics(registry, replicas.acceptance)
        admission = admission_of(config, metrics)
        async with (
            relaying(config.tls, target, discovery.membership, registered) as relays,
            trying(config.tokenizer, target.end_token_ids) as grammars,
        ):
            await wait_for_services(relays.services, drafting=bool(config.drafters))
            used = relays, tokenizer, served_model(config, target, tokenizer), metrics, admission
            answers = Answers(*used, chat=chat, grammars=grammars)
            drain, health, ends = drain or Drain(), Health(), RequestLog()
            recorder = Recorder(metrics, admission, ends)
            overview = Overview(replicas, admission, recorder, health)
            service = OrchestratorService(answers, overview, drain, ends, authenticator)
            front = Frontend(answers, drain, ends.reporting(metrics.ended), lambda: health.serving)
            api = HttpApi(front, target, tokenizer, registry, authenticator)
            if pages:
                add_status_pages(pages, overview.read)
            async with (
                background(replicas.report_verifiers(health), recorder.run()),
                http_port(config, api, announce),
                rpc.serving(
                    config.host,
                    config.port,
                    (service, *registration(config, target, registered, authenticator)),
                    health=health,
                    leave=drain.leave,
                    lame_duck_seconds=config.lame_duck_seconds,
                    drained=drain.finish,
                    security=security_of(config, authenticator),
                    calls=CallMetrics(registry, dict.fromkeys(ANSWERING, metrics.ended)),
                    shared=config.share_ports,
                ) as address,
            ):
                if pages:
                    add_probes(pages, lambda: health.problems)
                yield address
