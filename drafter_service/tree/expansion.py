"""What may follow: from the draft model's logits to the children of a node.

Three ways to guess: the tokens most likely to be the target's draw; tokens drawn as rejection
sampling wants them; and the branches of Medusa-lite. All of them only guess, so each may look at a
few likely tokens alone.
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

LARGE = 16384  # vocabulary from which on noise for all tokens takes more time than it is worth
SHORTLIST = 256  # likeliest tokens of a large vocabulary that get noise
FEW = 16  # tokens with the highest sums of logit and noise, among which the target's draw should be
SENT = 32  # tokens of a distribution that is drawn from, and sent
WEIGHTS = 1 << 16  # what its probabilities are rounded to
LOGIT_ERROR = (
    0.6  # how far a draft logit is typically off; measured by `make acceptance`, flat over 0.5-0.7
)
HOTTEST = 1e6  # temperature; of what is above it only the noise counts anyway
FIRST_TEMPERATURE = 0.9  # of Medusa-lite's first tokens where the target is greedy
FIRST_TOP_P = 0.95
PLAIN = SamplingParams(temperature=1.0)

Expander = Callable[[torch.Tensor, Sequence[int]], list[Expansion]]
"""From adjusted logits [rows, vocab], and the position of each row's next token, to what may follow
each row."""


def likeliest_children(params: SamplingParams, count: int, sure: bool = False) -> Expander:
    """The `count` tokens that most likely are the target's draw, with log-probabilities, and if
    `sure` how probable the draft model finds them.

    The target draws argmax(logit + temperature x noise). The drafter's logits are off by some
    scale, so softmax((logit + temperature x noise) / scale) predicts who wins.
    """

    few = max(FEW, count)

    def guess(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        tokens, keys = _favoured(logits, params, positions, few)  # [rows, few]
        gains = (keys / LOGIT_ERROR).log_softmax(-1)[:, :count].tolist()
        tokens = tokens[:, :count]
        chances = [[1.0] * count] * len(gains)
        if sure:
            plain = warp(logits, PLAIN if params.greedy else params)
            chances = plain.gather(-1, tokens).exp().tolist()
        rows = zip(tokens.tolist(), gains, chances, strict=True)
        return [Expansion([c for c in map(Child, *row) if c.gain > -math.inf]) for row in rows]

    return guess


def _favoured(
    logits: torch.Tensor, params: SamplingParams, positions: Sequence[int], few: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `few` tokens of each row [rows, vocab] that the target draws most likely, and their
    logits with its noise, but for what normalises, highest first; both [rows, few], or less.
    """
    heat, ids = min(params.temperature, HOTTEST), None
    if logits.shape[-1] >= LARGE or logits.device.type != "cpu":
        ids, logits = leading(logits, PLAIN if params.greedy else params, SHORTLIST)
        if heat:
            logits = (logits + gumbel(params.seed, positions, ids)) * heat
    elif heat:
        if params.top_k or params.top_p < 1 or params.min_p:
            logits = warp(logits, params) * heat
        noise = [_noise(params.seed, each, logits.shape[-1]) for each in positions]
        logits = torch.stack(noise).mul_(heat).add_(logits)
    top = logits.topk(min(few, logits.shape[-1]))
    return top.indices if ids is None else ids.gather(-1, top.indices), top.values


@lru_cache(maxsize=1024)
def _noise(seed: int, position: int, count: int) -> torch.Tensor:
    """Of all tokens, [count]; as the tree grows, most of its levels look for positions again."""
    return gumbel(seed, position, torch.arange(count))


def sampled_children(params: SamplingParams, branches: int, root: int) -> Expander:
    """Tokens drawn without replacement from the draft model's distribution, as far as it is sent:
    `branches` after the root, at position `root`, and one after other nodes.
    """

    def guess(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        rows = zip(logits, positions, strict=True)
        return [_drawn(row, params, at, branches if at == root else 1) for row, at in rows]

    return guess


def _drawn(row: torch.Tensor, params: SamplingParams, position: int, count: int) -> Expansion:
    if params.greedy:
        (token,), (score,) = (each[0].tolist() for each in leading(row[None], PLAIN, 1))
        return Expansion([Child(token, 0.0, math.exp(score))], Distribution((token,), (1,)))
    (likeliest,), (scores,) = leading(row[None], params, SENT)
    weights = (scores.exp().double() * WEIGHTS).round()
    kept = weights > 0  # the likeliest at least: it has 1 / vocabulary or more, unless that is huge
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
    """`branches` first tokens drawn without replacement from the nucleus of the `visible` tokens,
    [vocab], among those that the target may draw; each is continued by the likeliest ones.

    The draws share the target's noise, so among them tends to be what the target draws.
    """
    if params.greedy:  # what it draws from shall not matter then
        params = SamplingParams(FIRST_TEMPERATURE, seed=params.seed)

    def guess(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        if positions[0] != root:
            best = (each.flatten().tolist() for each in leading(logits, PLAIN, 1))
            return [Expansion([_sized(*pair)]) for pair in zip(*best, strict=True)]
        ids, scores = _nucleus(logits[:1], params)
        pool = visible[ids]
        if not pool.any():
            pool[0] = True
        ids, scores = ids[pool], scores[pool]
        first = (scores + gumbel(params.seed, root, ids)).argsort(descending=True)[:branches]
        pairs = zip(ids[first].tolist(), scores[first].tolist(), strict=True)
        return [Expansion([_sized(*pair) for pair in pairs])]

    return guess


def _nucleus(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens of a row [1, vocab], ids and log-probabilities: all whose probabilities
    add up to no more than they may, or else the likeliest one.
    """
    for count in (SHORTLIST, logits.shape[-1]):
        (ids,), (scores,) = leading(logits, params, count)
        inside = max(1, int((scores.exp().cumsum(0) <= FIRST_TOP_P).sum()))
        if inside < len(ids):
            break
    return ids[:inside], scores[:inside]


def _sized(token: int, logprob: float) -> Child:
    """A child whose chance is that of the draft model."""
    return Child(token, logprob, math.exp(logprob))


def is_whole(shape: DraftShape, params: SamplingParams) -> bool:
    """Whether drafts are made as a whole: their nodes are not the likeliest ones, or must come with
    what they were drawn from.
    """
    return shape.method is Method.MEDUSA_LITE or params.rule is Rule.REJECT


def branching(shape: DraftShape) -> DraftShape:
    """The shape of branches of equal length that part at the root, as many as the nodes allow."""
    branches = max(1, min(shape.branches, shape.nodes // max(1, shape.levels)))
    return replace(shape, branches=branches, nodes=branches * shape.levels)


def where_possible(guess: Expander) -> Expander:
    """The same guesses, but none after a row in which no token is possible: all that a grammar
    allows there may be tokens that the draft model does not share with the target.
    """

    def guess_or_not(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        nothing = logits.amax(-1).isneginf()
        found = guess(logits.masked_fill(nothing[:, None], 0.0), positions)
        pairs = zip(found, nothing.tolist(), strict=False)
        return [Expansion([]) if none else expansion for expansion, none in pairs]

    return guess_or_not


def expander(
    shape: DraftShape, params: SamplingParams, root: int, visible: torch.Tensor
) -> Expander:
    """How to guess after a text of `root` tokens; `visible` [tokens]: which of the tokenizer's
    tokens can be seen.
    """
    if shape.method is Method.MEDUSA_LITE:
        return medusa_lite_children(params, shape.branches, root, visible)
    if params.rule is Rule.REJECT:
        return sampled_children(params, shape.branches, root)
    if params.rule is Rule.TOP1:  # what is accepted is the target's likeliest token, not its draw
        params = replace(params, temperature=0.0)
    return likeliest_children(params, shape.branches, sure=shape.confidence > 0)
