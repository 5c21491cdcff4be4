"""Draws from many rows with different options in two kernels, on a CUDA device.

`engine.sampling.sampler.draw_rows` defines a draw: the maximum of log-probability and keyed Gumbel
noise over the tokens that top-k, top-p and min-p leave. The kernels compute in float32 and prove
what they find: where rounding could decide, a row is left to the definition, as on a processor
(`engine/forward/cpu/draw.cpp`). A token depends on its own row alone, however its row is computed.

The maximum of score + noise is looked for as the minimum of e^-(score + noise), which is a variate
of the exponential distribution times e^-score: two operations less for each token of a vocabulary.
`run` finds the two best tokens of each part of a row. `finish` joins the parts. If it finds that
the best token is not in the row's nucleus, it looks again among the likelier ones.

Errors: scores of a token that can win lie in [-27, 0], and its sums in [-4, 23], so that float32
rounds a sum by less than 1e-5 in the definition and by less than 2e-5 here. `MARGIN` is more than
the four errors of a comparison.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PART = 2048  # tokens of a part of a row
CHUNK = 4096  # tokens that a whole row is looked through by
FIELDS = tl.constexpr(10)  # words of 4 bytes for each row of the table
FOUND = tl.constexpr(4)  # numbers that are found in each part

UNSURE = tl.constexpr(-1)  # rounding could decide
NAN = tl.constexpr(-2)  # a logit is not a number
KEPT = tl.constexpr(0)
REMOVED = tl.constexpr(1)
MARGIN = tl.constexpr(1e-4)  # of scores and of shares of a row's mass
EQUAL = tl.constexpr(1e-6)  # times its distance to the highest logit: what rounding may make equal
HOTTEST = tl.constexpr(1e6)  # temperature; above it scores are too small for float32
DEEPEST = tl.constexpr(40.0)  # scores below the highest one; what is below it has no mass
SMALL = tl.constexpr(0.0625)  # uniform number below which a logarithm would lose digits
ROUNDS = tl.constexpr(64)  # draws from what is left of a row, at the most


def draw(table: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """What is drawn from each of the rows that a table describes, int64 [rows], or a code below 0.

    table: int32 [rows, 10] on the device, as `engine.sampling.device_draws` lays it out.
    """
    rows, parts = len(table), triton.cdiv(vocabulary, PART)
    tokens = torch.empty(rows, dtype=torch.long, device=table.device)
    found = torch.empty(rows, parts, FOUND.value, dtype=torch.float32, device=table.device)
    first = torch.empty(rows, parts, dtype=torch.int32, device=table.device)
    views = table, table.view(torch.float32), table.view(torch.long)
    _run[(rows, parts)](
        *views,
        *(found, first, vocabulary, parts),
        PART=PART,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _finish[(rows,)](
        *views,
        *(found, first, tokens, vocabulary, parts),
        LANES=triton.next_power_of_2(parts),
        CHUNK=CHUNK,
        num_warps=16,
        enable_fp_fusion=False,
    )
    return tokens


@triton.jit
def _run(ints, floats, longs, found, first, vocabulary, parts, PART: tl.constexpr):
    """Of one part of a row: its highest logit, or NaN; the two highest sums of score and noise,
    where scores are counted from that logit; the logit of the best; and its token.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_at, low, high, temperature, inverse = _draw_of(ints, floats, longs, row)
    ids = part * PART + tl.arange(0, PART)
    logits = tl.load(logits_at + ids, mask=ids < vocabulary, other=-float("inf"))
    top = tl.max(logits, 0)
    spread = _below(logits, top)
    if temperature == 0:
        weights = spread
    else:
        weights = _exponential(ids, low, high) * tl.exp(spread * inverse)
    least = tl.min(weights, 0)
    token = tl.min(tl.where(weights == least, ids, vocabulary), 0)
    second = tl.min(tl.where(ids == token, float("inf"), weights), 0)
    logit = tl.max(tl.where(ids == token, logits, -float("inf")), 0)
    numbers = tl.max((logits != logits).to(tl.int32), 0) == 0
    to = found + (row * parts + part) * FOUND
    tl.store(to, tl.where(numbers, top, float("nan")))
    tl.store(to + 1, -tl.log(least))
    tl.store(to + 2, -tl.log(second))
    tl.store(to + 3, logit)
    tl.store(first + row * parts + part, token)


@triton.jit
def _finish(
    ints,
    floats,
    longs,
    found,
    first,
    tokens,
    vocabulary,
    parts,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The token of a row from what was found in its parts."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    logits_at, low, high, temperature, inverse = _draw_of(ints, floats, longs, row)
    at, inside = found + (row * parts + lane) * FOUND, lane < parts
    tops = tl.load(at, mask=inside, other=-float("inf"))
    numbers = tl.max((tops != tops).to(tl.int32), 0) == 0
    top = tl.max(tops, 0)
    result = tl.where(numbers, UNSURE, NAN)
    if numbers & (tl.abs(top) < float("inf")) & (temperature <= HOTTEST):
        of_parts = tl.load(first + row * parts + lane, mask=inside, other=vocabulary)
        if temperature == 0:
            result = tl.min(tl.where(tops == top, of_parts, vocabulary), 0)
        else:
            shift = (tops - top) * inverse
            keys = shift + tl.load(at + 1, mask=inside, other=-float("inf"))
            best = tl.max(keys, 0)
            token = tl.min(tl.where(keys == best, of_parts, vocabulary), 0)
            mine = of_parts == token
            others = shift + tl.load(at + 2, mask=inside, other=-float("inf"))
            second = tl.max(tl.where(mine, others, keys), 0)
            logits = tl.load(at + 3, mask=inside, other=-float("inf"))
            logit = tl.max(tl.where(mine, logits, -float("inf")), 0)
            top_k, top_p = tl.load(ints + row * FIELDS + 6), tl.load(floats + row * FIELDS + 7)
            least_score = tl.load(floats + row * FIELDS + 8)
            if (top_k > 0) | (top_p < 1) | (least_score > -float("inf")):
                result = _inside(
                    *(logits_at, low, high, temperature, inverse, top_k, top_p, least_score),
                    *(token, logit, best - second, top, vocabulary, CHUNK),
                )
            elif best - second > MARGIN:
                result = token
    tl.store(tokens + row, result.to(tl.int64))


@triton.jit
def _draw_of(ints, floats, longs, row):
    """Of a row: where its logits are, the words of its key, its temperature and the inverse."""
    logits_at = tl.load(longs + row * (FIELDS // 2)).to(tl.pointer_type(tl.float32))
    low = tl.load(ints + row * FIELDS + 2).to(tl.uint32, bitcast=True)
    high = tl.load(ints + row * FIELDS + 3).to(tl.uint32, bitcast=True)
    temperature = tl.load(floats + row * FIELDS + 4)
    return logits_at, low, high, temperature, tl.load(floats + row * FIELDS + 5)


# ---------------------------------------------------------------- nuclei


@triton.jit
def _inside(
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
    """The best token of those that a row's options leave, from the best of all, or UNSURE."""
    floor = -float("inf")
    verdict = REMOVED
    if (top_k > 0) & (top_k < vocabulary):
        floor = _floor(logits_at, vocabulary, top_k, top, temperature, CHUNK)
        _, _, next_one = _split(logits_at, vocabulary, floor, CHUNK)
        if next_one >= floor - EQUAL * (top - floor):  # it may have the same score, and stay too
            verdict = tl.where(floor > -float("inf"), UNSURE, verdict)
    depth = 2 * MARGIN - least_score  # below the highest logit, in scores, where min-p surely cuts
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
        if verdict == REMOVED:  # and so is what is less likely
            token, logit, gap = _best(
                *(logits_at, low, high, inverse, depth, floor, logit, top, vocabulary, CHUNK)
            )
    return tl.where(verdict == KEPT, token, UNSURE)


@triton.jit
def _best(
    logits_at, low, high, inverse, depth, floor, removed, top, vocabulary, CHUNK: tl.constexpr
):
    """Of the logits from `floor` on, above `removed` and less than `depth` below the highest one:
    the token with the best sum of score and noise, its logit, and how far ahead of the next one it
    is, NaN if there is none.
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
        weights = _exponential(ids, low, high) * tl.exp(spread)
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
    """Whether a token with this logit stays: by min-p, and by top-p as a share of the mass of the
    logits from `floor` on.
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
        if (alone == 0) | (score < 0):  # the likeliest always stays
            if above >= share + margin:
                verdict = REMOVED
            elif (
                tl.where(alone, above, upto) > share - margin
            ):  # it is unsure how equals are sorted
                verdict = UNSURE
    return verdict


@triton.jit
def _masses(logits_at, inverse, logit, floor, top, vocabulary, CHUNK: tl.constexpr):
    """Of the logits from `floor` on: the mass of what is surely likelier than a logit, that with
    what may be as likely, and that of all; and how many may be as likely as it, itself included.
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
    """The `top_k`-th highest logit of a row, or -inf if it is too low to count."""
    low, high = top - DEEPEST * temperature, top
    count, _, _ = _split(logits_at, vocabulary, low, CHUNK)
    if count < top_k:
        low, high = -float("inf"), -float("inf")
    while low < high:  # at least `top_k` logits lie from `low` on, and fewer above `high`
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
    """How many logits lie from a limit on, the lowest of them, and the highest of the others."""
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


# ---------------------------------------------------------------- noise


@triton.jit
def _below(logits, top):
    """How far each logit is below the highest one, which may be infinite."""
    return tl.where(logits == top, 0.0, top - logits)


@triton.jit
def _exponential(ids, low, high):
    """-log(1 - u) for the uniform numbers u of `engine.sampling.noise`: e^-noise, to 2e-6 of it."""
    state = _fold(_mix(_mix(_fold(ids.to(tl.uint32)) ^ low) ^ high)) ^ 0x80000000
    uniform = (state.to(tl.float32) + 0.5) * 2.0**-32
    rest = ((state ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32  # 1 - uniform
    series = uniform * (1 / 5 + uniform * (1 / 6))
    series = uniform * (1 / 3 + uniform * (1 / 4 + series))
    series = uniform * (1 + uniform * (1 / 2 + series))
    return tl.where(uniform < SMALL, series, -tl.log(rest))


@triton.jit
def _mix(state):
    """A round of the hash without its folds."""
    state *= 0x7FEB352D
    state ^= state >> 15
    return state * 0x846CA68B


@triton.jit
def _fold(state):
    """The lower half xor the upper one."""
    return state ^ (state >> 16)
