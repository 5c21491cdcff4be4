"""What a request gets where it says nothing: what the model's makers say, else what is usual."""

from __future__ import annotations

from tandem.orchestrator.frontend.request import Request
from tandem.protos.types import GenerationDefaults, SamplingParams


def sampling_params(
    request: Request,
    prompt_length: int,
    stop_token_ids: frozenset[int],
    defaults: GenerationDefaults,
) -> SamplingParams:
    """How a request's tokens are drawn."""
    sampling = request.sampling
    return SamplingParams(
        temperature=first(sampling.temperature, defaults.temperature, 1.0),
        top_k=int(first(sampling.top_k, defaults.top_k, 0)),
        top_p=first(sampling.top_p, defaults.top_p, 1.0),
        seed=sampling.seed or 0,
        min_p=first(sampling.min_p, defaults.min_p, 0.0),
        repetition_penalty=first(sampling.repetition_penalty, defaults.repetition_penalty, 1.0),
        suppress_tokens=defaults.suppress_tokens,
        begin_suppress_tokens=defaults.begin_suppress_tokens,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        prompt_length=prompt_length,
        min_new_tokens=request.stopping.min_new_tokens,
        end_tokens=tuple(sorted(stop_token_ids)),
        rule=request.speculation.rule,
        logprobs=request.logprobs,
    )


def first(given: float | None, default: float | None, otherwise: float) -> float:
    """What the request says, else what the model's makers say."""
    return next(value for value in (given, default, otherwise) if value is not None)
