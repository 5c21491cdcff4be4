"""The status as a message of the client API."""

from __future__ import annotations

from importlib.metadata import version

from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.history import Figures
from tandem.orchestrator.frontend.status import Status
from tandem.v1 import orchestrator_pb2 as api


def encode_status(status: Status, with_history: bool) -> api.GetStatusResponse:
    """Status to message."""
    model = api.ModelStatus(
        name=status.model,
        tokenizer_fingerprint=status.tokenizer_fingerprint,
        verifiers=map(encode_replica, status.verifiers),
        drafters=map(encode_replica, status.drafters),
        requests_running=status.running,
        requests_waiting=status.waiting,
        clients=(
            api.ClientStatus(name=each.name, running=each.running, waiting=each.waiting)
            for each in status.clients
        ),
        last_minute=encode_figures(status.last_minute),
        history=map(encode_figures, status.history if with_history else ()),
    )
    return api.GetStatusResponse(
        version=version("tandem-serving"),
        models=[model],
        problems=status.problems,
    )


def encode_figures(figures: Figures) -> api.RecentFigures:
    """Figures to message."""
    return api.RecentFigures(
        seconds=figures.seconds,
        tokens_per_second=figures.tokens_per_second,
        acceptance_rate=figures.acceptance_rate,
        mean_acceptance_length=figures.mean_acceptance_length,
        goodput_with_drafts=figures.goodput_with_drafts,
        goodput_without_drafts=figures.goodput_without_drafts,
        requests_finished=figures.finished,
        requests_failed=figures.failed,
        requests_running=figures.running,
        requests_waiting=figures.waiting,
    )


def encode_replica(replica: ReplicaStatus) -> api.ReplicaStatus:
    """Status of a replica to message."""
    known = replica.model
    found = api.ReplicaStatus(
        address=replica.address, serving=not replica.problem, problem=replica.problem
    )
    if known:
        found.model, found.device, found.dtype = known.name, known.device, known.dtype
        found.sessions, found.kv_cache_usage = known.sessions, known.cache_usage
        found.exactness, found.kernels = known.exactness, known.kernels
        found.fingerprint = known.fingerprint
        found.weights_bytes, found.context_length = known.weights_bytes, known.context_length
        found.cache_positions, found.full_sessions = known.cache_positions, known.full_sessions
        found.round_trip_seconds = replica.round_trip_seconds
        found.acceptance_rate = replica.acceptance_rate or 0.0
        found.draft_tokens = replica.draft_tokens
    return found
