"""Turns the draft model's logits into the children of a tree node.

There are three kinds of expanders. `likeliest_children` proposes the tokens that the target will
most likely draw, `sampled_children` draws tokens as rejection sampling requires, and
`medusa_lite_children` proposes the branches of Medusa-lite. Expanders may consider only a few
likely tokens, because proposals need not be right.
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

# at this vocabulary size and above, computing noise for all tokens takes too long
LARGE_VOCABULARY = 16384
SHORTLIST = 256  # in a large vocabulary, only this many of the likeliest tokens get noise
# minimum number of candidates, which are the tokens with the highest sums of logit and noise; the
# token that the target draws should be among them
MIN_CANDIDATES = 16
# children are drawn from this many of the likeliest tokens; the distribution of these tokens is
# sent with the draft
SENT_TOKENS = 32
UNIT_WEIGHT = 1 << 16  # probabilities are rounded to integer weights; probability 1 has this weight
# typical error of a draft logit; `make acceptance` gave the same result for values from 0.5 to 0.7
LOGIT_ERROR = 0.6
# higher temperatures are lowered to this limit; above it, only the noise matters
MAX_TEMPERATURE = 1e6
FIRST_TEMPERATURE = 0.9  # temperature of Medusa-lite's first tokens if the target is greedy
FIRST_TOP_P = 0.95  # top_p of Medusa-lite's first tokens
TEMPERATURE_ONE = SamplingParams(temperature=1.0)

Expander = Callable[[torch.Tensor, Sequence[int]], list[Expansion]]
"""A function that takes adjusted logits [rows, vocab] and the position of each row's next token,
and returns the children of each row's node.
"""


def likeliest_children(
    params: SamplingParams, count: int, with_probabilities: bool = False
) -> Expander:
    """Return an expander that proposes the `count` tokens that the target is most likely to draw.
    Each token has the log-probability that the target draws it. If `with_probabilities`, each token
    also has the probability that the draft model gives it.

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
    """Return the tokens that the target is most likely to draw for each row of `logits` [rows,
    vocab], likeliest first. Also return the logits of these tokens with the target's noise added.
    Both results are [rows, candidates], with fewer columns if the vocabulary is smaller.
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
    """Return the noise [count] of all tokens at a position. The result is cached, because most
    levels of a growing tree need the noise of the same positions again.
    """
    return gumbel(seed, position, torch.arange(count))


def sampled_children(params: SamplingParams, branches: int, root: int) -> Expander:
    """Return an expander that draws tokens without replacement from the part of the draft model's
    distribution that is sent with the draft. The root, at position `root`, gets `branches`
    children, and every other node gets one.
    """

    def propose(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        rows = zip(logits, positions, strict=True)
        return [_sampled(row, params, at, branches if at == root else 1) for row, at in rows]

    return propose


def _sampled(row: torch.Tensor, params: SamplingParams, position: int, count: int) -> Expansion:
    """Draw `count` children of a row without replacement from its likeliest tokens, whose
    probabilities are rounded to integer weights. The returned expansion includes the integer
    weights.
    """
    if params.greedy:
        (token,), (score,) = (each[0].tolist() for each in leading(row[None], TEMPERATURE_ONE, 1))
        return Expansion([Child(token, 0.0, math.exp(score))], Distribution((token,), (1,)))
    (likeliest,), (scores,) = leading(row[None], params, SENT_TOKENS)
    weights = (scores.exp().double() * UNIT_WEIGHT).round()
    kept = weights > 0  # in a huge vocabulary, even the likeliest token's weight may be 0
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
    """Return an expander that proposes `branches` first tokens, and continues each of them with the
    draft model's likeliest tokens. The first tokens are drawn without replacement from the likely
    tokens that have visible characters (`visible` [vocab]).

    The draws use the target's noise, so they often include the token that the target draws.
    """
    if params.greedy:  # for a greedy target, the other sampling parameters must have no effect
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
    """Return a child whose chance of being accepted is the probability that the draft model gives
    it.
    """
    return Child(token, logprob, math.exp(logprob))


def is_whole(shape: DraftShape, params: SamplingParams) -> bool:
    """Tell whether each draft is made from scratch and sent complete, instead of growing as a tree.
    Complete drafts are necessary if the nodes of a draft are not the likeliest ones, or must be
    sent with the distributions that they were drawn from.
    """
    return shape.method is Method.MEDUSA_LITE or params.rule is Rule.REJECT


def branching(shape: DraftShape) -> DraftShape:
    """Return the draft shape of a tree whose branches start at the root and are equally long. The
    tree has as many branches as `shape` asks for, or fewer if `shape` does not have enough nodes.
    """
    branches = max(1, min(shape.branches, shape.nodes // max(1, shape.levels)))
    return replace(shape, branches=branches, nodes=branches * shape.levels)


def where_possible(propose: Expander) -> Expander:
    """Return an expander that proposes like `propose`, but returns no children for a row in which
    all tokens are impossible. Such a row occurs if a grammar allows only tokens that the draft
    model does not share with the target.
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
    """Return the expander that the draft shape and the acceptance rule require, for drafts after a
    text of `root` tokens. `visible` [tokens] tells which of the tokenizer's tokens have visible
    characters.
    """
    if shape.method is Method.MEDUSA_LITE:
        return medusa_lite_children(params, shape.branches, root, visible)
    if params.rule is Rule.REJECT:
        return sampled_children(params, shape.branches, root)
    # TOP1 accepts the target's likeliest token, not a token drawn at random
    if params.rule is Rule.TOP1:
        params = replace(params, temperature=0.0)
    return likeliest_children(params, shape.branches, with_probabilities=shape.confidence > 0)
