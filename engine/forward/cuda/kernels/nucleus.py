"""The nucleus of a row, which is the tokens that top-k, top-p and min-p leave, as far as a draw
needs to know them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.noise import exponential

UNSURE = tl.constexpr(-1)  # means that rounding could decide
KEPT = tl.constexpr(0)
REMOVED = tl.constexpr(1)
MARGIN = tl.constexpr(1e-4)  # margin of error of scores, and of shares of a row's mass
# times a logit's distance to the highest: the range in which rounding may make logits equal
EQUAL = tl.constexpr(1e-6)
DEEPEST = tl.constexpr(40.0)  # scores this far below the highest score have no mass
ROUNDS = tl.constexpr(64)  # most draws from the tokens left of a row


@triton.jit
def inside_nucleus(
    logits_at,
    low,
    high,
    temperature,
    inverse,
    top_k,
    top_p,
    least_score,
    token,
    logit,
    gap,
    top,
    vocabulary,
    CHUNK: tl.constexpr,
):
    """Return the best token that a row's top-k, top-p and min-p keep, or UNSURE. `token`, `logit`
    and `gap` describe the best of all tokens.
    """
    floor = -float("inf")
    verdict = REMOVED
    if (top_k > 0) & (top_k < vocabulary):
        floor = _floor(logits_at, vocabulary, top_k, top, temperature, CHUNK)
        _, _, next_one = _split(logits_at, vocabulary, floor, CHUNK)
        # the next logit may have the same score, and stay too
        if next_one >= floor - EQUAL * (top - floor):
            verdict = tl.where(floor > -float("inf"), UNSURE, verdict)
    # distance in scores below the highest logit, beyond which min-p surely cuts
    depth = 2 * MARGIN - least_score
    if (logit < floor) | ((top - logit) * inverse > depth):
        token, logit, gap = _best(
            *(logits_at, low, high, inverse, depth, floor, -float("inf"), top, vocabulary, CHUNK)
        )
    rounds = 0
    while verdict == REMOVED:
        verdict = UNSURE
        if gap > MARGIN:
            verdict = _verdict(
                logits_at, inverse, top_p, least_score, logit, floor, top, vocabulary, CHUNK
            )
        rounds += 1
        if rounds == ROUNDS:
            verdict = tl.where(verdict == REMOVED, UNSURE, verdict)
        if verdict == REMOVED:  # less likely tokens are removed, too
            token, logit, gap = _best(
                *(logits_at, low, high, inverse, depth, floor, logit, top, vocabulary, CHUNK)
            )
    return tl.where(verdict == KEPT, token, UNSURE)


@triton.jit
def _best(
    logits_at, low, high, inverse, depth, floor, removed, top, vocabulary, CHUNK: tl.constexpr
):
    """Find the token with the best sum of score and noise. Only logits count that are at least
    `floor`, above `removed` and at most `depth` below the highest logit. Return the token, its
    logit, and how far its sum is ahead of the next one, which is NaN if no token is left.
    """
    lane = tl.arange(0, CHUNK)
    best = tl.full((CHUNK,), float("inf"), tl.float32)
    second = best
    logit = tl.full((CHUNK,), -float("inf"), tl.float32)
    token = tl.full((CHUNK,), 0, tl.int32) + vocabulary
    for start in range(0, vocabulary, CHUNK):
        ids = start + lane
        logits = tl.load(logits_at + ids, mask=ids < vocabulary, other=-float("inf"))
        spread = (top - logits) * inverse
        stays = (logits >= floor) & (logits > removed) & (spread <= depth)
        weights = exponential(ids, low, high) * tl.exp(spread)
        weights = tl.where(stays, weights, float("inf"))
        better = weights < best
        second = tl.minimum(second, tl.where(better, best, weights))
        best = tl.where(better, weights, best)
        logit = tl.where(better, logits, logit)
        token = tl.where(better, ids, token)
    smallest = tl.min(best, 0)
    winner = tl.min(tl.where(best == smallest, token, vocabulary), 0)
    next_one = tl.min(tl.where(token == winner, second, best), 0)
    found = tl.max(tl.where(token == winner, logit, -float("inf")), 0)
    return winner, found, tl.log(next_one) - tl.log(smallest)


@triton.jit
def _verdict(
    logits_at, inverse, top_p, least_score, logit, floor, top, vocabulary, CHUNK: tl.constexpr
):
    """Return whether a token with this logit is KEPT or REMOVED by min-p and top-p, or UNSURE. For
    top-p, the mass of the logits from `floor` up is the whole.
    """
    score = (logit - top) * inverse
    verdict = KEPT
    if (score < 0) & (score < least_score + MARGIN):
        verdict = tl.where(score < least_score - MARGIN, REMOVED, UNSURE)
    if (top_p < 1) & (verdict != REMOVED):
        above, upto, total, equals = _masses(
            logits_at, inverse, logit, floor, top, vocabulary, CHUNK
        )
        share, margin = top_p * total, MARGIN * total
        alone = equals == 1
        if (alone == 0) | (score < 0):  # the likeliest token always stays
            if above >= share + margin:
                verdict = REMOVED
            # of equal logits, any may come first
            elif tl.where(alone, above, upto) > share - margin:
                verdict = UNSURE
    return verdict


@triton.jit
def _masses(logits_at, inverse, logit, floor, top, vocabulary, CHUNK: tl.constexpr):
    """Measure the logits from `floor` up against one of them. Return the mass of the tokens that
    are surely likelier; the mass of these and of the tokens that may be as likely; the mass of all;
    and how many tokens may be as likely, itself included.
    """
    lane, reach = tl.arange(0, CHUNK), EQUAL * tl.abs(logit - top)
    above = tl.zeros((CHUNK,), tl.float32)
    upto, total, equals = above, above, tl.zeros((CHUNK,), tl.int32)
    for start in range(0, vocabulary, CHUNK):
        ids = start + lane
        logits = tl.load(logits_at + ids, mask=ids < vocabulary, other=-float("inf"))
        mass = tl.where(logits >= floor, tl.exp((logits - top) * inverse), 0.0)
        likelier = logits > logit + reach
        as_likely = (logits >= logit - reach) & (logits >= floor)
        above += tl.where(likelier, mass, 0.0)
        upto += tl.where(as_likely, mass, 0.0)
        total += mass
        equals += (as_likely & (likelier == 0)).to(tl.int32)
    return tl.sum(above, 0), tl.sum(upto, 0), tl.sum(total, 0), tl.sum(equals, 0)


@triton.jit
def _floor(logits_at, vocabulary, top_k, top, temperature, CHUNK: tl.constexpr):
    """Return the `top_k`-th highest logit of a row, or -inf if that is too low to count."""
    low, high = top - DEEPEST * temperature, top
    count, _, _ = _split(logits_at, vocabulary, low, CHUNK)
    if count < top_k:
        low, high = -float("inf"), -float("inf")
    while low < high:  # at least `top_k` logits are >= `low`, and fewer are > `high`
        middle = low + (high - low) / 2
        middle = tl.where(middle > low, middle, high)
        count, least, most = _split(logits_at, vocabulary, middle, CHUNK)
        if count < top_k:
            high = most
        else:
            low = least
            high = tl.where(count == top_k, least, high)
    return low


@triton.jit
def _split(logits_at, vocabulary, limit, CHUNK: tl.constexpr):
    """Return how many logits are at least a limit, the lowest of these, and the highest of the
    others.
    """
    lane, count = tl.arange(0, CHUNK), tl.zeros((CHUNK,), tl.int32)
    least = tl.full((CHUNK,), float("inf"), tl.float32)
    most = tl.full((CHUNK,), -float("inf"), tl.float32)
    for start in range(0, vocabulary, CHUNK):
        ids = start + lane
        logits = tl.load(logits_at + ids, mask=ids < vocabulary, other=-float("inf"))
        from_limit = logits >= limit
        count += from_limit.to(tl.int32)
        least = tl.minimum(least, tl.where(from_limit, logits, float("inf")))
        most = tl.maximum(most, tl.where(from_limit, -float("inf"), logits))
    return tl.sum(count, 0), tl.min(least, 0), tl.max(most, 0)
