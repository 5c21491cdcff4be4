"""The orchestrator put together: round workers, front end, metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from orchestrator.config import OrchestratorConfig
from orchestrator.fleet.replicas import Replicas
from orchestrator.frontend.request import Limits
from orchestrator.frontend.servicer import NAME, Admission, OrchestratorService
from orchestrator.frontend.text import load_tokenizer, longest_token, special_tokens
from orchestrator.metrics import FrontMetrics
from orchestrator.workers import cluster, local
from orchestrator.workers.pool import WorkerPool
from protos.tandem.v1 import orchestrator_pb2_grpc
from protos.transport import rpc
from protos.types import DraftShape, Schedule


@asynccontextmanager
async def serving(config: OrchestratorConfig, registry: CollectorRegistry) -> AsyncIterator[str]:
    """The client API while the scope lasts; yields its address. Raises Unusable or
    IncompatibleModels.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    supervising = cluster.supervising if config.ray else local.supervising
    async with rpc.connect(config.verifier) as verifier, rpc.connect(config.drafter) as drafter:
        replicas = Replicas(config, verifier, drafter)
        target = await replicas.introduce()
        metrics = FrontMetrics(registry)
        async with (
            supervising(config) as supervisor,
            WorkerPool(supervisor, metrics.resumes.inc) as pool,
        ):
            shape = DraftShape(
                config.draft_levels,
                config.draft_branches,
                config.draft_nodes,
                schedule=Schedule[config.draft_schedule.upper()],
            )
            service = OrchestratorService(
                pool,
                replicas,
                tokenizer,
                Limits(
                    target,
                    shape,
                    target.context_length * longest_token(tokenizer),
                    special_tokens(tokenizer),
                ),
                metrics,
                Admission(config.max_running, config.max_waiting, metrics),
            )
            services = {
                NAME: lambda s: orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(
                    service, s
                )
            }
            async with rpc.serving(config.host, config.port, services) as address:
                yield address
