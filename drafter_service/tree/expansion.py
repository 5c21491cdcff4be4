"""Turns the draft model's logits into the children of a node.

There are three ways to propose. The first way proposes the tokens that the target most likely
draws, the second way draws tokens as rejection sampling requires, and the third way proposes the
branches of Medusa-lite. Since proposals may be wrong, each way may consider only a few likely
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from tandem.drafter_service.tree.node import Child, Expansion
from tandem.engine.sampling.likeliest import leading
from tandem.engine.sampling.noise import NoiseStream, gumbel
from tandem.engine.sampling.sampler import warp
from tandem.protos.types import Distribution, DraftShape, Method, Rule, SamplingParams

# from this size of the vocabulary on, noise for all tokens costs too much time
LARGE_VOCABULARY = 16384
SHORTLIST = 256  # number of the likeliest tokens of a large vocabulary that get noise
# least number of candidates: the tokens with the highest sums of logit and noise, which should
# include the target's draw
MIN_CANDIDATES = 16
SENT_TOKENS = 32  # children are drawn from this many of the likeliest tokens, which are all sent
UNIT_WEIGHT = 1 << 16  # probabilities are rounded to integer weights; probability 1 has this weight
# typical error of a draft logit; `make acceptance` gave the same result from 0.5 to 0.7
LOGIT_ERROR = 0.6
MAX_TEMPERATURE = 1e6  # highest temperature that counts; above it, only the noise matters
FIRST_TEMPERATURE = 0.9  # temperature of Medusa-lite's first tokens if the target is greedy
FIRST_TOP_P = 0.95  # nucleus of Medusa-lite's first tokens
TEMPERATURE_ONE = SamplingParams(temperature=1.0)

Expander = Callable[[torch.Tensor, Sequence[int]], list[Expansion]]
"""A function that takes adjusted logits [rows, vocab] and the position of each row's next token,
and returns the children of each row's node.
"""


def likeliest_children(
    params: SamplingParams, count: int, with_probabilities: bool = False
) -> Expander:
    """Propose the `count` tokens that the target most likely draws, with log-probabilities and, if
    `with_probabilities`, with the draft model's probabilities.

    The target draws argmax(logit + temperature x noise). The drafter's logits differ from the
    target's by about LOGIT_ERROR, so softmax((logit + temperature x noise) / LOGIT_ERROR) predicts
    how likely the target is to draw each token.
    """

    candidates = max(MIN_CANDIDATES, count)

    def propose(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        tokens, keys = _likeliest_draws(logits, params, positions, candidates)  # [rows, candidates]
        logprobs = (keys / LOGIT_ERROR).log_softmax(-1)[:, :count].tolist()
        tokens = tokens[:, :count]
        chances = [[1.0] * count] * len(logprobs)
        if with_probabilities:
            plain = warp(logits, TEMPERATURE_ONE if params.greedy else params)
            chances = plain.gather(-1, tokens).exp().tolist()
        rows = zip(tokens.tolist(), logprobs, chances, strict=True)
        return [Expansion([c for c in map(Child, *row) if c.logprob > -math.inf]) for row in rows]

    return propose


def _likeliest_draws(
    logits: torch.Tensor, params: SamplingParams, positions: Sequence[int], candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that the target most likely draws for each row of `logits` [rows, vocab],
    and their unnormalised logits with the target's noise, highest first. The tokens and the logits
    are [rows, candidates], or narrower for a smaller vocabulary.
    """
    temperature, ids = min(params.temperature, MAX_TEMPERATURE), None
    if logits.shape[-1] >= LARGE_VOCABULARY or logits.device.type != "cpu":
        ids, logits = leading(logits, TEMPERATURE_ONE if params.greedy else params, SHORTLIST)
        if temperature:
            logits = (logits + gumbel(params.seed, positions, ids)) * temperature
    elif temperature:
        if params.top_k or params.top_p < 1 or params.min_p:
            logits = warp(logits, params) * temperature
        noise = [_noise(params.seed, each, logits.shape[-1]) for each in positions]
        logits = torch.stack(noise).mul_(temperature).add_(logits)
    top = logits.topk(min(candidates, logits.shape[-1]))
    return top.indices if ids is None else ids.gather(-1, top.indices), top.values


@lru_cache(maxsize=1024)
def _noise(seed: int, position: int, count: int) -> torch.Tensor:
    """Return the noise of all tokens at a position, [count]. The result is cached: as a tree grows,
    most of its levels need the noise of the same positions again.
    """
    return gumbel(seed, position, torch.arange(count))


def sampled_children(params: SamplingParams, branches: int, root: int) -> Expander:
    """Propose tokens drawn without replacement from the part of the draft model's distribution that
    is sent. The root, at position `root`, gets `branches` children, and every other node gets one.
    """

    def propose(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        rows = zip(logits, positions, strict=True)
        return [_sampled(row, params, at, branches if at == root else 1) for row, at in rows]

    return propose


def _sampled(row: torch.Tensor, params: SamplingParams, position: int, count: int) -> Expansion:
    """Draw `count` children without replacement from the part of a row's distribution that is
    sent, with its probabilities rounded to integer weights.
    """
    if params.greedy:
        (token,), (score,) = (each[0].tolist() for each in leading(row[None], TEMPERATURE_ONE, 1))
        return Expansion([Child(token, 0.0, math.exp(score))], Distribution((token,), (1,)))
    (likeliest,), (scores,) = leading(row[None], params, SENT_TOKENS)
    weights = (scores.exp().double() * UNIT_WEIGHT).round()
    kept = weights > 0  # the likeliest token has a weight above 0, unless the vocabulary is huge
    kept[0] = True
    ids, weights = likeliest[kept], weights[kept].clamp(min=1)
    keys = weights.log() + gumbel(params.seed, position, ids, NoiseStream.DRAFT)
    order = keys.argsort(descending=True)[:count]
    chances = (weights / weights.sum())[order].tolist()
    pairs = zip(ids[order].tolist(), chances, strict=True)
    drawn = Distribution(tuple(ids.tolist()), tuple(int(weight) for weight in weights))
    return Expansion([Child(token, 0.0, chance) for token, chance in pairs], drawn)


def medusa_lite_children(
    params: SamplingParams, branches: int, root: int, visible: torch.Tensor
) -> Expander:
    """Propose `branches` first tokens, and continue each with the likeliest tokens. The first
    tokens are drawn without replacement from those likeliest tokens that are `visible` [vocab].

    The draws use the target's noise, so the token that the target draws is often among them.
    """
    if params.greedy:  # a greedy target's other sampling parameters must not matter
        params = SamplingParams(FIRST_TEMPERATURE, seed=params.seed)

    def propose(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        if positions[0] != root:
            best = (each.flatten().tolist() for each in leading(logits, TEMPERATURE_ONE, 1))
            return [Expansion([_child(*pair)]) for pair in zip(*best, strict=True)]
        ids, scores = _nucleus(logits[:1], params)
        pool = visible[ids]
        if not pool.any():
            pool[0] = True
        ids, scores = ids[pool], scores[pool]
        first = (scores + gumbel(params.seed, root, ids)).argsort(descending=True)[:branches]
        pairs = zip(ids[first].tolist(), scores[first].tolist(), strict=True)
        return [Expansion([_child(*pair) for pair in pairs])]

    return propose


def _nucleus(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and log-probabilities of the likeliest tokens of a row [1, vocab]. The
    probabilities of these tokens add up to FIRST_TOP_P at most, unless there is only one token.
    """
    for count in (SHORTLIST, logits.shape[-1]):
        (ids,), (scores,) = leading(logits, params, count)
        inside = max(1, int((scores.exp().cumsum(0) <= FIRST_TOP_P).sum()))
        if inside < len(ids):
            break
    return ids[:inside], scores[:inside]


def _child(token: int, logprob: float) -> Child:
    """Return a child whose chance to be accepted is its probability by the draft model."""
    return Child(token, logprob, math.exp(logprob))


def is_whole(shape: DraftShape, params: SamplingParams) -> bool:
    """Tell whether drafts are made as a whole. Drafts are made as a whole if their nodes are not
    the likeliest ones, or must be sent with the distributions that they were drawn from.
    """
    return shape.method is Method.MEDUSA_LITE or params.rule is Rule.REJECT


def branching(shape: DraftShape) -> DraftShape:
    """Return the shape of a tree whose branches start at the root and are equally long. The tree
    has as many branches as `shape` asks for, or fewer if `shape` does not have enough nodes.
    """
    branches = max(1, min(shape.branches, shape.nodes // max(1, shape.levels)))
    return replace(shape, branches=branches, nodes=branches * shape.levels)


def where_possible(propose: Expander) -> Expander:
    """Return an expander that proposes like `propose`, but nothing after a row in which no token is
    possible. Such a row occurs if a grammar allows only tokens that the draft model does not share
    with the target.
    """

    def propose_or_not(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        nothing = logits.amax(-1).isneginf()
        found = propose(logits.masked_fill(nothing[:, None], 0.0), positions)
        pairs = zip(found, nothing.tolist(), strict=False)
        return [Expansion([]) if none else expansion for expansion, none in pairs]

    return propose_or_not


def expander(
    shape: DraftShape, params: SamplingParams, root: int, visible: torch.Tensor
) -> Expander:
    """Return the expander that proposes after a text of `root` tokens. `visible` [tokens] tells
    which of the tokenizer's tokens a reader can see.
    """
    if shape.method is Method.MEDUSA_LITE:
        return medusa_lite_children(params, shape.branches, root, visible)
    if params.rule is Rule.REJECT:
        return sampled_children(params, shape.branches, root)
    if params.rule is Rule.TOP1:  # TOP1 accepts the target's likeliest token, not its draw
        params = replace(params, temperature=0.0)
    return likeliest_children(params, shape.branches, with_probabilities=shape.confidence > 0)
