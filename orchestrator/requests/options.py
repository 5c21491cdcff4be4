"""Fill in the options that a request does not set. Sampling options get the model's defaults from
`generation_config.json`, or else the usual defaults. Speculation options get their defaults from
the server's settings.

The module is pure. An option that is not implemented causes an error that names the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tandem.orchestrator.requests.request import Request, Speculation
from tandem.protos.errors import Violation
from tandem.protos.generation import GenerationDefaults
from tandem.protos.types import (
    MAX_LEVELS,
    MAX_LOGPROBS,
    MAX_NODES,
    DraftShape,
    Method,
    Rule,
    SamplingParams,
    Schedule,
)

# number of draft levels with which the heuristic schedule starts
HEURISTIC_LEVELS = 8
LOCKSTEP_LEVELS, LOCKSTEP_NODES = 4, 8  # small, because in lockstep every proposed node is verified
MAX_PROMPT_LOGPROBS = 1 << 18  # limit on log-probabilities per prompt; they fit into 4 MiB


def shape(options: Speculation, default: DraftShape) -> DraftShape:
    """Return the draft shape of a request. If the request sets the number of branches, a draft can
    have up to levels x branches nodes. Otherwise, the default shape limits the number of nodes. If
    the request sets the number of levels but no schedule, the schedule is CONSTANT.
    """
    levels_given = options.num_speculative_tokens is not None
    branches_given = options.branches is not None
    schedule = options.schedule or (Schedule.CONSTANT if levels_given else default.schedule)
    levels = default.levels
    if options.num_speculative_tokens is not None:
        levels = options.num_speculative_tokens
    branches = default.branches if options.branches is None else options.branches
    nodes = default.nodes
    lockstep = options.rule is not Rule.MATCH
    if lockstep:
        nodes = min(nodes, LOCKSTEP_NODES)
    if not levels_given and schedule is Schedule.HEURISTIC:
        levels = min(levels, HEURISTIC_LEVELS)
    elif not levels_given and lockstep:
        levels = min(levels, LOCKSTEP_LEVELS)
    method = options.drafted_by or default.method
    # a draft has at most MAX_NODES nodes, so options that the request does not set are reduced
    whole = method is Method.MEDUSA_LITE
    if whole and not levels_given:
        levels = min(levels, MAX_NODES // max(1, branches))
    elif whole and not branches_given:
        branches = min(branches, MAX_NODES // max(1, levels))
    if branches_given or whole or branches == 1:
        nodes = MAX_NODES
    return replace(
        default,
        levels=levels,
        branches=branches,
        nodes=min(nodes, levels * branches),
        method=method,
        confidence=options.confidence_threshold,
        schedule=schedule,
    )


def speculation_problems(options: Speculation) -> Iterator[Violation]:
    """Yield a violation for every speculation option that is invalid or not supported."""
    levels, branches = options.num_speculative_tokens or 0, options.branches
    if levels > MAX_LEVELS:
        yield Violation("speculation.num_speculative_tokens", f"is {levels}, above {MAX_LEVELS}")
    if branches is not None and not 1 <= branches <= MAX_NODES:
        yield Violation("speculation.branches", f"is {branches}, not in 1..{MAX_NODES}")
    confidence = options.confidence_threshold
    if not 0 <= confidence <= 1:
        limit = f"is {confidence:g}, not in 0..1"
        yield Violation("speculation.confidence_threshold", limit)
    if confidence and options.method is Method.SUFFIX:
        limit = f"is {confidence:g}, but the method SUFFIX does not use it"
        yield Violation("speculation.confidence_threshold", limit)
    nodes = levels * (branches or 0)
    if options.method is Method.MEDUSA_LITE and nodes > MAX_NODES:
        found = f"is {branches}, times num_speculative_tokens {levels}: {nodes} nodes"
        yield Violation("speculation.branches", f"{found}, above {MAX_NODES}")
    if options.prediction and options.method is Method.MEDUSA_LITE:
        yield Violation("speculation.prediction", "cannot be used with the method MEDUSA_LITE")
    if options.drafter:
        yield Violation("speculation.drafter", "is not supported")


def prompt_problems(request: Request, length: int) -> Iterator[Violation]:
    """Yield a violation if a request asks for too many log-probabilities of its prompt, which has
    `length` tokens. Also yield a violation if the request asks for no output at all: neither new
    tokens, nor an echo, nor log-probabilities of the prompt.
    """
    top, wanted = request.prompt_logprobs or 0, request.prompt_top_logprobs
    if top > MAX_LOGPROBS:
        yield Violation("prompt_logprobs", f"is {top}, above {MAX_LOGPROBS}")
    elif wanted is not None and length * (1 + wanted) > MAX_PROMPT_LOGPROBS:
        name = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        found = f"is {wanted}: {length * (1 + wanted)} log-probabilities for {length} prompt tokens"
        yield Violation(name, f"{found}, above {MAX_PROMPT_LOGPROBS}")
    if request.stopping.max_new_tokens == 0 and wanted is None and not request.echo:
        problem = "is 0, but must be at least 1 without echo or prompt_logprobs"
        yield Violation("stopping.max_new_tokens", problem)


def sampling_params(
    request: Request,
    prompt_length: int,
    stop_token_ids: frozenset[int],
    defaults: GenerationDefaults,
    model_ends: tuple[int, ...] = (),
) -> SamplingParams:
    """Return the sampling parameters of a request. An answer with a grammar ends where the grammar
    ends. If a request with a grammar sets `ignore_eos`, the model's end tokens are never sampled
    before the grammar ends.
    """
    sampling = request.sampling
    ignored = model_ends if sampling.grammar and request.stopping.ignore_eos else ()
    return SamplingParams(
        temperature=first(sampling.temperature, defaults.temperature, 1.0),
        top_k=int(first(sampling.top_k, defaults.top_k, 0)),
        top_p=first(sampling.top_p, defaults.top_p, 1.0),
        seed=sampling.seed or 0,
        min_p=first(sampling.min_p, defaults.min_p, 0.0),
        repetition_penalty=first(sampling.repetition_penalty, defaults.repetition_penalty, 1.0),
        suppress_tokens=(*defaults.suppress_tokens, *ignored),
        begin_suppress_tokens=defaults.begin_suppress_tokens,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        prompt_length=prompt_length,
        min_new_tokens=request.stopping.min_new_tokens,
        end_tokens=tuple(sorted(stop_token_ids)),
        rule=request.speculation.rule,
        logprobs=request.logprobs,
        grammar=sampling.grammar,
    )


def first(given: float | None, default: float | None, otherwise: float) -> float:
    """Return the request's value, or else the model's default, or else the usual default."""
    return next(value for value in (given, default, otherwise) if value is not None)
