"""Sample tokens for many rows with different options, with two kernels on a CUDA device.

The reference implementation is `engine.sampling.sampler.draw_rows`: it takes the token with the
maximum of log-probability plus keyed Gumbel noise among the tokens that top-k, top-p and min-p
keep. The kernels compute in float32, and return a token only if rounding cannot change the result.
If rounding could change the token of a row, the row is left to the reference implementation. The
kernel for CPUs (`engine/forward/cpu/draw.cpp`) also leaves a row to the reference implementation if
rounding could change its token. The token of a row depends only on that row, whichever
implementation computes it.

Instead of the maximum of score + noise, the kernels search for the minimum of e^-(score + noise),
which is an exponentially distributed variate times e^-score. Searching for the minimum saves two
operations for each token of the vocabulary. `_run` finds the two best tokens in each part of a row.
`_finish` combines the results of all parts of a row. If the best token is not in the row's nucleus,
`_finish` searches again among the likelier tokens.

Rounding errors: a token that can win has a score in [-27, 0], and its sum of score and noise is in
[-4, 23]. In float32, the rounding error of a sum of score and noise is therefore below 1e-5 in the
reference implementation, and below 2e-5 in these kernels. `MARGIN` is larger than the four rounding
errors that a comparison of two sums involves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.noise import below, exponential
from tandem.engine.forward.cuda.kernels.nucleus import MARGIN, UNSURE, inside_nucleus

PART = 2048  # tokens per part of a row
CHUNK = 4096  # number of tokens that a search over a whole row reads at a time
FIELDS = tl.constexpr(10)  # size of a table row in words of 4 bytes
FOUND = tl.constexpr(4)  # how many floats `_run` stores for each part of a row

NAN = tl.constexpr(-2)  # the result for a row that contains a NaN
HOTTEST = tl.constexpr(1e6)  # at higher temperatures, scores are too small for float32


def draw(table: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Sample a token for each row that a table describes. Returns int64 [rows] on the device:
    tokens, or the negative codes `UNSURE` and `NAN`.

    table: int32 [rows, 10] on the device, as `engine.sampling.device_draws` builds it.
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
    """Find the best token in one part of a row. Store five results: the highest logit of the part
    (NaN if the part contains a NaN), the two highest sums of score and noise, the logit of the best
    token, and the best token. Scores are relative to the highest logit of the part.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_at, low, high, temperature, inverse = _draw_of(ints, floats, longs, row)
    ids = part * PART + tl.arange(0, PART)
    logits = tl.load(logits_at + ids, mask=ids < vocabulary, other=-float("inf"))
    top = tl.max(logits, 0)
    spread = below(logits, top)
    if temperature == 0:  # noqa: SIM108
        weights = spread
    else:
        weights = exponential(ids, low, high) * tl.exp(spread * inverse)
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
    """Determine the token of a row from the results of its parts."""
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
                result = inside_nucleus(
                    *(logits_at, low, high, temperature, inverse, top_k, top_p, least_score),
                    *(token, logit, best - second, top, vocabulary, CHUNK),
                )
            elif best - second > MARGIN:
                result = token
    tl.store(tokens + row, result.to(tl.int64))


@triton.jit
def _draw_of(ints, floats, longs, row):
    """Load the sampling options of a row from the table: the address of its logits, both words of
    its key, its temperature, and the inverse of the temperature.
    """
    logits_at = tl.load(longs + row * (FIELDS // 2)).to(tl.pointer_type(tl.float32))
    low = tl.load(ints + row * FIELDS + 2).to(tl.uint32, bitcast=True)
    high = tl.load(ints + row * FIELDS + 3).to(tl.uint32, bitcast=True)
    temperature = tl.load(floats + row * FIELDS + 4)
    return logits_at, low, high, temperature, tl.load(floats + row * FIELDS + 5)
