"""Chunks and answers as messages of the client API."""

from __future__ import annotations

from tandem.orchestrator.frontend.answer import Answer, Chunk
from tandem.orchestrator.metrics import SpeculationStats
from tandem.protos.types import Rule, TokenLogprobs
from tandem.v1 import orchestrator_pb2 as api


def encode_chunk(chunk: Chunk) -> api.Chunk:
    """Chunk to message."""
    return api.Chunk(
        text=chunk.text,
        token_ids=chunk.token_ids,
        completion_tokens=chunk.completion_tokens,
        logprobs=_encode_logprobs(chunk.logprobs),
        request_id=chunk.request_id,
        seed=chunk.seed,
    )


def encode_answer(answer: Answer) -> api.GenerateResponse:
    """Answer to message."""
    response = api.GenerateResponse(
        request_id=answer.request_id,
        text=answer.text,
        token_ids=answer.token_ids,
        finish_reason=api.FinishReason.ValueType(answer.finish.value if answer.finish else 0),
        usage=api.Usage(
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(answer.token_ids),
            cached_tokens=answer.cached_tokens,
        ),
        timing=api.Timing(
            queue_seconds=answer.queue_seconds,
            time_to_first_token_seconds=answer.first_token_seconds,
            total_seconds=answer.total_seconds,
        ),
        speculation=encode_stats(answer.speculation, answer.rule),
        seed=answer.seed,
        logprobs=_encode_logprobs(answer.logprobs),
    )
    if isinstance(answer.matched_stop, str):
        response.matched_text = answer.matched_stop
    elif answer.matched_stop is not None:
        response.matched_token_id = answer.matched_stop
    return response


def encode_stats(stats: SpeculationStats, rule: Rule) -> api.SpeculationSummary:
    """Figures to message."""
    return api.SpeculationSummary(
        num_spec_steps=stats.steps,
        num_steps_with_guesses=stats.steps_with_guesses,
        num_draft_tokens=stats.drafted,
        num_accepted_draft_tokens=stats.accepted,
        mean_acceptance_length=stats.mean_acceptance_length,
        draft_acceptance_rate=stats.draft_acceptance_rate,
        acceptance_histogram=stats.acceptance_histogram,
        num_late_draft_tokens=stats.late,
        num_unused_draft_tokens=stats.unused,
        fallback_rounds=stats.fallback_steps,
        drafter_switches=stats.drafter_switches,
        verifier_switches=stats.verifier_switches,
        verifier_group_changes=stats.verifier_group_changes,
        rule=api.AcceptanceRule.ValueType(rule.value),
    )


def _encode_logprobs(logprobs: tuple[TokenLogprobs, ...]) -> list[api.TokenLogprobs]:
    return [
        api.TokenLogprobs(
            logprob=each.logprob,
            top_ids=[token for token, _ in each.top],
            top_logprobs=[value for _, value in each.top],
        )
        for each in logprobs
    ]
