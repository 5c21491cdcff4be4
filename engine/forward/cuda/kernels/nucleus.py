"""Find the best token in the nucleus of a row. The nucleus is the set of tokens that top-k, top-p
and min-p keep. The kernel never computes the whole nucleus; it only checks whether the tokens that
it tries belong to the nucleus.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.noise import exponential

UNSURE = tl.constexpr(-1)  # the result is uncertain because of rounding
KEPT = tl.constexpr(0)
REMOVED = tl.constexpr(1)
MARGIN = tl.constexpr(1e-4)  # error margin of scores, and of fractions of a row's probability mass
# two logits may become equal by rounding if they differ by less than this factor times their
# distance to the highest logit
EQUAL = tl.constexpr(1e-6)
DEEPEST = tl.constexpr(40.0)  # scores this far below the highest have negligible probability mass
ROUNDS = tl.constexpr(64)  # maximum number of tokens that are tried for a row, best first


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
    """Return the best token that a row's top-k, top-p and min-p keep, or UNSURE if rounding could
    change this token. `token` and `logit` describe the best token before filtering. `gap` tells by
    how much that token's sum of score and noise exceeds the second highest sum.
    """
    floor = -float("inf")
    verdict = REMOVED
    if (top_k > 0) & (top_k < vocabulary):
        floor = _floor(logits_at, vocabulary, top_k, top, temperature, CHUNK)
        _, _, next_one = _split(logits_at, vocabulary, floor, CHUNK)
        # the next lower logit may round to the same score, so that top-k would keep its token too
        if next_one >= floor - EQUAL * (top - floor):
            verdict = tl.where(floor > -float("inf"), UNSURE, verdict)
    # min-p certainly removes tokens whose score is further than this below the highest score
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
        if verdict == REMOVED:  # less likely tokens are removed too, so try a likelier token
            token, logit, gap = _best(
                *(logits_at, low, high, inverse, depth, floor, logit, top, vocabulary, CHUNK)
            )
    return tl.where(verdict == KEPT, token, UNSURE)


@triton.jit
def _best(
    logits_at, low, high, inverse, depth, floor, removed, top, vocabulary, CHUNK: tl.constexpr
):
    """Find the token with the highest sum of score and noise among the tokens that qualify. A token
    qualifies if its logit is at least `floor` and above `removed`, and its score is at most `depth`
    below the highest score. Return the token, its logit, and the difference between its sum and the
    second highest sum. The difference is NaN if no token qualifies.
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
    """Return KEPT if min-p and top-p certainly keep a token with this logit, and REMOVED if one of
    them certainly removes it. Return UNSURE if the decision depends on rounding. Top-p ignores
    tokens whose logits are below `floor`.
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
        if (alone == 0) | (score < 0):  # the likeliest token is always kept
            if above >= share + margin:
                verdict = REMOVED
            # the order of tokens with equal logits is unknown
            elif tl.where(alone, above, upto) > share - margin:
                verdict = UNSURE
    return verdict


@triton.jit
def _masses(logits_at, inverse, logit, floor, top, vocabulary, CHUNK: tl.constexpr):
    """Compare the likelihood of all tokens with that of one token, whose logit is given. Tokens
    with logits below `floor` are ignored. Some tokens are certainly likelier than the given token,
    and others may be equally likely, such as the given token itself. Return four results: the mass
    of the likelier tokens, the mass of the likelier and the possibly equally likely tokens
    together, the mass of all tokens, and the number of tokens that may be equally likely.
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
    """Return the `top_k`-th highest logit of a row, or -inf if tokens with this logit have
    negligible probability mass.
    """
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
    """Return how many logits are at least `limit`, the lowest of these logits, and the highest
    logit below `limit`.
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
