"""Converts sampling options to messages and back, and checks their values. The limits are the same
for a client's request and for a call between services.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tandem.protos.errors import InvalidRequest, Violation
from tandem.protos.grammar import MAX_BYTES, Grammar, GrammarKind
from tandem.protos.types import MAX_BIASES, MAX_LOGPROBS, Rule, SamplingParams
from tandem.protos.wire.drafting import decode_choice
from tandem.v1 import common_pb2

REPETITION_RANGE = 0.01, 100.0
MAX_PENALTY = 2.0  # largest absolute value of the presence and frequency penalties
MAX_BIAS = 100.0  # largest absolute value of the bias of a token


def problems(sampling: SamplingParams) -> Iterator[Violation]:
    """Yield a violation for every option that is out of range, under the name that clients use."""
    yield from _number("temperature", sampling.temperature, 0, math.inf)
    if not 0 < sampling.top_p <= 1:
        limit = f"is {sampling.top_p:g}, not above 0 and at most 1"
        yield Violation("sampling.top_p", limit)
    yield from _number("min_p", sampling.min_p, 0, 1)
    yield from _number("repetition_penalty", sampling.repetition_penalty, *REPETITION_RANGE)
    for name in ("presence_penalty", "frequency_penalty"):
        yield from _number(name, getattr(sampling, name), -MAX_PENALTY, MAX_PENALTY)
    if len(sampling.logit_bias) > MAX_BIASES:
        limit = f"has {len(sampling.logit_bias)} entries, above {MAX_BIASES}"
        yield Violation("sampling.logit_bias", limit)
    if sampling.grammar and (size := len(sampling.grammar.text.encode())) > MAX_BYTES:
        yield Violation(sampling.grammar.field, f"has {size} bytes, above {MAX_BYTES}")
    if (sampling.logprobs or 0) > MAX_LOGPROBS:
        yield Violation("logprobs", f"is {sampling.logprobs}, above {MAX_LOGPROBS}")
    for token, bias in sampling.logit_bias:
        if found := list(_number(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS)):
            yield from found
            break  # report only the first of perhaps a thousand problems


def _number(name: str, value: float, least: float, most: float) -> Iterator[Violation]:
    if least <= value <= most and math.isfinite(value):
        return
    limit = f"not in {least:g}..{most:g}" if math.isfinite(most) else "below 0 or not finite"
    yield Violation(f"sampling.{name}", f"is {value:g}, {limit}")


def encode_sampling(sampling: SamplingParams) -> common_pb2.SamplingParams:
    """Convert sampling options to a message. Options without an effect are not sent."""
    message = common_pb2.SamplingParams(
        repetition_penalty=_zero_if_one(sampling.repetition_penalty),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        suppress_tokens=sampling.suppress_tokens,
        begin_suppress_tokens=sampling.begin_suppress_tokens,
    )
    if sampling.historic:
        message.prompt_length = sampling.prompt_length
    if sampling.min_new_tokens:
        message.min_new_tokens = sampling.min_new_tokens
        message.end_tokens.extend(sampling.end_tokens)
    if sampling.rule is not Rule.MATCH:
        message.rule = common_pb2.Rule.ValueType(sampling.rule.value)
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    if sampling.grammar:
        message.grammar.kind = common_pb2.GrammarKind.ValueType(sampling.grammar.kind.value)
        message.grammar.text = sampling.grammar.text
    if not sampling.greedy:
        message.temperature, message.seed = sampling.temperature, sampling.seed
        message.top_k, message.top_p = sampling.top_k, _zero_if_one(sampling.top_p)
        message.min_p = sampling.min_p
    return message


def decode_sampling(message: common_pb2.SamplingParams) -> SamplingParams:
    """Convert a message to sampling options. Raises InvalidRequest if an option is invalid."""
    sampling = SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p or 1.0,
        seed=message.seed,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty or 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        prompt_length=message.prompt_length,
        min_new_tokens=message.min_new_tokens,
        end_tokens=tuple(message.end_tokens),
        rule=decode_choice("sampling.rule", Rule, message.rule),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        suppress_tokens=tuple(message.suppress_tokens),
        begin_suppress_tokens=tuple(message.begin_suppress_tokens),
        grammar=_decode_grammar(message.grammar) if message.HasField("grammar") else None,
    )
    if found := list(problems(sampling)):
        raise InvalidRequest(*found)
    return sampling


def _decode_grammar(message: common_pb2.Grammar) -> Grammar:
    try:
        return Grammar(GrammarKind(message.kind), message.text)
    except ValueError:
        known = ", ".join(each.name for each in GrammarKind)
        problem = f"is {message.kind}, not one of {known}"
        raise InvalidRequest.of("sampling.grammar.kind", problem) from None


def _zero_if_one(value: float) -> float:
    return 0.0 if value == 1 else value
