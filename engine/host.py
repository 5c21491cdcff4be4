"""One model in one process: loaded, self-tested, with its sessions and its model thread.

The scope in which a drafter or a verifier serves; what it does with the logits is the service's own
business.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import torch
from prometheus_client import CollectorRegistry

from engine.config import ModelServiceConfig
from engine.forward import Forward, self_test
from engine.metrics import ModelMetrics, SessionCollector
from engine.model import load
from engine.scheduler import ModelThread
from engine.sessions import Sessions
from protos.errors import InvalidRequest, Unusable
from protos.fingerprint import fingerprint
from protos.types import ModelDescription

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Host:
    """What a service needs of the engine."""

    forward: Forward
    sessions: Sessions
    thread: ModelThread
    config: ModelServiceConfig
    tokenizer_fingerprint: str

    def describe(self) -> ModelDescription:
        """The model and how full it is."""
        model = self.forward.model
        return ModelDescription(
            name=self.config.model.resolve().name,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            vocab_size=model.vocab_size,
            context_length=self.forward.context_length,
            end_token_ids=model.end_token_ids,
            device=str(model.device),
            dtype=self.config.dtype,
            sessions=len(self.sessions),
            max_sessions=self.config.max_sessions,
        )

    def check_tokens(self, field: str, tokens: tuple[int, ...]) -> None:
        """Raise InvalidRequest if a token is not in the vocabulary."""
        if tokens and max(tokens) >= self.forward.model.vocab_size:
            last = self.forward.model.vocab_size - 1
            limit = f"has token {max(tokens)}, above the vocabulary's last, {last}"
            raise InvalidRequest.of(field, limit)

    async def close(self, session_id: bytes) -> None:
        """Forget a session, in turn with the other work on it."""
        await self.thread.run(session_id, lambda: self.sessions.close(session_id), always=True)


@asynccontextmanager
async def hosting(
    config: ModelServiceConfig, verb: str, registry: CollectorRegistry
) -> AsyncIterator[Host]:
    """Load the model and run its thread while the scope lasts; raises Unusable."""
    torch.set_num_threads(config.threads)
    forward = await asyncio.to_thread(_load, config)
    sessions = Sessions(
        forward.cache, forward.context_length, _new_epoch, config.session_ttl, time.monotonic
    )
    metrics = ModelMetrics(verb, registry)
    registry.register(SessionCollector(sessions, lambda: len(sessions) / config.max_sessions))
    with ModelThread(
        forward, config.max_batch_sessions, metrics.observe, sessions.expire
    ) as thread:
        yield Host(forward, sessions, thread, config, fingerprint(config.model))


def _new_epoch() -> int:
    return secrets.randbelow((1 << 32) - 1) + 1


def _load(config: ModelServiceConfig) -> Forward:
    model = load(config.model, config.dtype, config.device)
    context_length = min(config.context_length or model.context_length, model.context_length)
    if config.context_length and config.context_length > model.context_length:
        limit = f"is above the model's, {model.context_length}"
        raise Unusable(f"context_length {config.context_length} {limit}")
    try:
        forward = Forward(model, config.max_sessions, context_length)
    except RuntimeError as error:
        size = f"{config.max_sessions} sessions of {context_length} tokens"
        raise Unusable(
            f"{size} do not fit into memory; lower max_sessions or context_length"
        ) from error
    worst = self_test(Forward(model, 2, min(64, context_length)), str(config.model))
    log.info("model ready", model=str(config.model), self_test_difference=worst)
    return forward
