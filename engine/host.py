"""Load and self-test one model, and run its model thread and its sessions in this process.

Only the drafter or verifier that runs inside `hosting` knows what the logits are used for.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog
import torch
from prometheus_client import CollectorRegistry
from pydantic import ByteSize

from tandem.engine import capacity
from tandem.engine.activity import Activity
from tandem.engine.cache.sessions import Sessions
from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.exactness import Exactness, positions_tried, self_test
from tandem.engine.exact.fingerprint import model_fingerprint, weights_fingerprint
from tandem.engine.forward.cuda.batch_invariance import disable_split_k
from tandem.engine.loading import load_model, ranks_of, runner_of
from tandem.engine.memory import available
from tandem.engine.metrics import ModelMetrics, SessionCollector
from tandem.engine.model.generation import generation_defaults
from tandem.engine.model_runner import ModelRunner
from tandem.engine.sampling import drawing
from tandem.engine.schedule.batch import StepLimits
from tandem.engine.schedule.progress import StepReport
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.warm_up import single_token_seconds, warm_up
from tandem.engine.weights import weights_bytes
from tandem.protos.errors import InvalidRequest, Unusable
from tandem.protos.fingerprint import fingerprint
from tandem.protos.generation import GenerationDefaults
from tandem.protos.hub import name_of
from tandem.protos.service.about import report_model
from tandem.protos.service.process import announce
from tandem.protos.service.tasks import background
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import ModelDescription

HEALTH_SECONDS = 0.25  # seconds between two health checks of the model thread

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Host:
    """The parts of the engine that a drafter or verifier service needs."""

    runner: ModelRunner
    sessions: Sessions
    thread: ModelThread
    config: ModelServiceConfig
    exactness: Exactness
    tokenizer_fingerprint: str
    fingerprint: str
    weights_fingerprint: str
    weights_bytes: int
    generation: GenerationDefaults
    health: Health

    def describe(self) -> ModelDescription:
        """Describe the model, its limits, and how many sessions and how much cache are in use."""
        model, sessions, pool = self.runner.model, self.sessions, self.runner.pool
        size = pool.positions, sessions.context_length, sessions.max_sessions
        return ModelDescription(
            name=name_of(self.config.model),
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            vocab_size=model.vocab_size,
            context_length=sessions.context_length,
            end_token_ids=model.end_token_ids,
            device=device_name(model.device),
            dtype=model.numbers,
            sessions=len(sessions),
            exactness=str(self.exactness),
            cache_usage=sessions.usage,
            kernels=self.runner.kernels,
            fingerprint=self.fingerprint,
            weights_fingerprint=self.weights_fingerprint,
            generation=self.generation,
            weights_bytes=self.weights_bytes,
            cache_positions=pool.positions,
            full_sessions=capacity.sessions_of(*size, pool.footprint),
        )

    async def close(self, session_id: bytes, close: Callable[[bytes], None]) -> None:
        """Close a session after all work that has been submitted for it so far."""
        await self.thread.run(session_id, lambda: close(session_id), closing=True)


def device_name(device: torch.device) -> str:
    """Return a device's name as it appears in the status and in the log."""
    return f"{device}, experimental" if device.type == "cuda" else str(device)


def check_tokens(field: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    """Raise InvalidRequest if any of the tokens is not in the vocabulary."""
    if tokens and max(tokens) >= vocab_size:
        limit = f"has token {max(tokens)}, above the vocabulary's last token, {vocab_size - 1}"
        raise InvalidRequest.of(field, limit)


@asynccontextmanager
async def hosting(
    config: ModelServiceConfig, verb: str, exact: bool, registry: CollectorRegistry
) -> AsyncIterator[Host]:
    """Load the model, and run the model thread inside this context. Raises Unusable."""
    if config.port:  # check the port first, because loading the model takes long
        rpc.free_port(config.host, config.port)
    torch.set_num_threads(config.rank_threads)
    runner, exactness = await asyncio.to_thread(load_and_test, config, exact)
    tokenizer = fingerprint(config.model)
    model = await asyncio.to_thread(model_fingerprint, runner, tokenizer)
    weights = await asyncio.to_thread(weights_fingerprint, config.model, tokenizer)
    generation, unused = generation_defaults(config.model, runner.model.vocab_size)
    if unused and verb == "verify":
        log.warning("generation_config.json is used in part", settings=", ".join(unused))
    single_token = await asyncio.to_thread(single_token_seconds, runner)
    pool, longest = runner.pool, config.context_length or runner.model.context_length
    sessions = Sessions(
        pool,
        capacity.context_of(pool.positions, longest, pool.footprint),
        *(config.max_sessions, _new_epoch, config.session_ttl, time.monotonic),
        config.evict_after,
    )
    metrics, activity = ModelMetrics(verb, exactness.problem is None, registry), Activity(sessions)
    registry.register(SessionCollector(sessions))
    limits = StepLimits(
        *(config.max_batch_sessions, config.max_batch_tokens),
        *(config.prompt_slack, config.prompt_seconds),
    )
    gc.collect()
    gc.freeze()  # so that garbage collections during steps skip long-lived objects

    def observe(report: StepReport) -> None:
        metrics.observe(report)
        activity.observe(report)

    with ModelThread(
        *(runner, runner.wait, limits, observe, sessions.expire), single_token=single_token
    ) as thread:
        health = Health()
        async with background(_report(thread, health, runner), activity.run()):
            known = tokenizer, model, weights, weights_bytes(runner.model), generation
            host = Host(runner, sessions, thread, config, exactness, *known, health)
            await warm_up(thread, sessions, config.max_batch_tokens)
            report_model(registry, host.describe())
            yield host


async def _report(thread: ModelThread, health: Health, runner: ModelRunner) -> None:
    """Report the model's health every HEALTH_SECONDS; raise Unusable if it has failed for good."""
    while True:
        problem = runner.lost or thread.problem(time.perf_counter())
        ended = runner.lost or thread.ended
        health.report("model thread", problem)
        if ended:
            raise Unusable(f"the model can no longer be served: {problem}")
        await asyncio.sleep(HEALTH_SECONDS)


def _new_epoch() -> int:
    return secrets.randbelow((1 << 32) - 1) + 1


def load_and_test(config: ModelServiceConfig, exact: bool) -> tuple[ModelRunner, Exactness]:
    """Load a model, allocate memory for its sessions, and self-test it; raises Unusable."""
    if exact and config.device.startswith("cuda"):
        disable_split_k()
    ranks = ranks_of(config)
    model = load_model(config, ranks.shard if ranks else None)
    if config.context_length and config.context_length > model.context_length:
        limit = f"is above {model.context_length}, the longest context that the model supports"
        raise Unusable(f"context_length {config.context_length} {limit}")
    longest, tried = config.context_length or model.context_length, positions_tried(model)
    each, footprint = capacity.position_cost(model), capacity.footprint_for(model, config)
    setting, kv_bytes = capacity.kv_memory(model, config)
    size = f"{setting} {ByteSize(kv_bytes).human_readable()}"
    most = capacity.most_positions(config.max_sessions, longest, tried, footprint)
    positions = min(kv_bytes // each, most)
    least = capacity.positions_for(config.context_length or 1, tried, footprint)
    if positions < least:
        one = ByteSize(each * least).human_readable()
        lower = " or lower context_length" if config.context_length else ""
        raise Unusable(f"{size} is less than one session needs, {one}; raise it{lower}")
    if (held := capacity.context_of(positions, longest, footprint)) < longest:
        known = {"context_length": held, "model_context_length": longest, "kv_bytes": kv_bytes}
        log.warning("the context is as long as memory allows", model=str(config.model), **known)
    left = available()
    if model.device.type == "cpu" and left is not None and positions * each > left:
        log.warning(
            "kv_bytes is more memory than there is left", kv_bytes=positions * each, left=left
        )
    announce("testing", model=str(config.model))
    try:
        runner = runner_of(model, positions, exact, footprint, ranks)
        exactness = _self_tested(runner, config, exact)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise Unusable(f"{size} does not fit into memory; lower it") from error
    _log_model(runner, str(config.model), exactness, exact)
    return runner, exactness


def _log_model(runner: ModelRunner, name: str, exactness: Exactness, exact: bool) -> None:
    """Log how a model is served, and warn if it is slower or less exact than expected."""
    log.info(
        "model ready",
        model=name,
        device=device_name(runner.model.device),
        dtype=runner.model.numbers,
        exactness=str(exactness),
        attention=str(runner.backend),
        kernels=runner.kernels,
        unfused=runner.unfused,
        positions=runner.pool.positions,
    )
    if runner.problem:
        log.warning("slow for its device", model=name, problem=runner.problem)
    if exactness.wrong:
        log.warning("the self-test failed", model=name, problem=exactness.wrong)
    if exact and exactness.problem:
        log.warning("not exact", model=name, problem=exactness.problem)


def _self_tested(runner: ModelRunner, config: ModelServiceConfig, exact: bool) -> Exactness:
    """Self-test a model and return how exact it is. If exact mode is switched off, the model is
    tested again in the mode in which it will be served.
    """
    name, strict = str(config.model), config.self_test == "refuse"
    exactness = self_test(runner, name, strict)
    if exact and exactness.problem and runner.give_up_exactness():
        exactness = replace(exactness, wrong=self_test(runner, name, strict).wrong)
    runner.model.reference.release()
    began = time.perf_counter()
    if captured := runner.capture_passes():
        left, _ = torch.cuda.mem_get_info(runner.model.device)
        seconds = time.perf_counter() - began
        log.info("passes captured", passes=captured, seconds=seconds, bytes_left=left)
    if slow := drawing.prepare(runner.model.device, runner.model.vocab_size):
        log.warning("draws are slow for the device", model=name, problem=slow)
    return exactness
