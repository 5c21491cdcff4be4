"""Draws from rows of many sessions at once, and the likeliest tokens of rows.

`engine.sampling.sampler.draw_rows` defines a draw, and draws wherever there is no compiled kernel.
The kernel (`draw.cpp`) draws the same tokens: what rounding could decide it leaves to the
definition. It looks at each row alone, so nothing depends on other rows or the number of threads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from ctypes import c_int, c_long, c_void_p
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.forward.cpu.kernels import kernels, required_kernels
from tandem.engine.sampling.sampler import COLDEST, draw_rows, warp
from tandem.protos.types import SamplingParams, TokenLogprobs

LISTED = 256  # likeliest tokens among which the end of a nucleus is looked for, at least
DRAW = np.dtype(  # as in draw.cpp
    [
        ("row", "u8"),
        ("seed", "u8"),
        ("position", "i8"),
        ("top_k", "i8"),
        ("top_p", "f8"),
        ("min_p", "f8"),
        ("temperature", "f4"),
    ],
    align=True,
)


class Rows(NamedTuple):
    """Adjusted rows [rows, vocab] to draw from, each at its own position."""

    logits: torch.Tensor
    params: SamplingParams
    positions: Sequence[int]


def draw_batch(batch: Sequence[Rows]) -> list[torch.Tensor]:
    """What is drawn from the rows of each, which are all of one vocabulary: int64 [rows] on their
    device, which is not waited for.
    """
    if not batch or not all(has_kernel(rows.logits) for rows in batch):
        return _as_defined(batch)
    draws = np.concatenate([_draws(*rows) for rows in batch])
    tokens, vocabulary = torch.empty(len(draws), dtype=torch.long), batch[0].logits.shape[-1]
    build = required_kernels()
    build.library.tandem_draw(
        *(c_void_p(draws.ctypes.data), c_long(len(draws)), c_long(vocabulary)),
        *(c_void_p(tokens.data_ptr()), c_int(build.sharing(len(draws) * vocabulary))),
    )
    found = tokens.split([len(rows.positions) for rows in batch])
    for place in np.flatnonzero(tokens.numpy() < 0).tolist():
        tokens[place] = _defined(batch, place)
    return list(found)


def draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """What is drawn at a position from an adjusted row [vocab]."""
    return int(draw_batch([Rows(logits[None], params, (position,))])[0])


def leading(
    logits: torch.Tensor, params: SamplingParams, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` likeliest tokens, or all, of each of the adjusted rows [rows, vocab], likeliest
    first: ids and log-probabilities, both [rows, count]. The kernel's are close to those of the
    definition, which is enough for a guess: of a nucleus that goes on after the tokens that are
    looked at it is assumed that it holds no more than it must.
    """
    count = min(count, logits.shape[-1])
    if not has_kernel(logits):
        top = warp(logits, params).topk(count)
        return top.indices, top.values
    cut = params.top_p < 1 or params.min_p > 0
    listed = min(max(count, LISTED), logits.shape[-1]) if cut else count
    ids, scores, logs = _likeliest(logits, params, listed)
    logprobs = scores - logs[:, None]
    if cut:
        chances = logprobs.exp()
        before = chances.cumsum(-1) - chances
        before[:, 0] = 0.0  # the likeliest is always kept
        removed = (before >= params.top_p) & (before > 0)
        if params.min_p:
            removed |= scores < math.log(params.min_p)
        logprobs.masked_fill_(removed, -torch.inf)
        mass = logprobs.exp().sum(-1, keepdim=True)
        ends = logprobs[:, -1:].isneginf() | (listed == logits.shape[-1])
        logprobs -= mass.where(ends, torch.tensor(params.top_p)).log()
    return ids[:, :count], logprobs[:, :count]


def logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """The model's own log-probabilities, before any option, from logits as they are, [vocab]."""
    return replace(logprobs_of_rows(logits[None], (token,), count)[0], rank=0)


def logprobs_of_rows(
    logits: torch.Tensor, tokens: Sequence[int], count: int
) -> list[TokenLogprobs]:
    """Those of a token for each row [rows, vocab], and its rank."""
    scores = logits.log_softmax(-1)
    own = scores.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])
    if has_kernel(scores):
        ids = _likeliest(scores, SamplingParams(1.0), count)[0]
    else:
        ids = scores.topk(count).indices
    ranks = (scores > own).sum(-1, keepdim=True) + 1
    columns = [own, ranks, ids, scores.gather(-1, ids)]
    told = torch.cat([column.double() for column in columns], 1).tolist()  # the one copy
    return [
        TokenLogprobs(
            chance, tuple(zip(map(int, rest[:count]), rest[count:], strict=True)), int(rank)
        )
        for chance, rank, *rest in told
    ]


def has_kernel(logits: torch.Tensor) -> bool:
    """Whether there is a kernel for rows [..., vocab]."""
    plain = logits.dtype == torch.float32 and logits.stride(-1) == 1
    return plain and logits.device.type == "cpu" and kernels() is not None


def _as_defined(batch: Sequence[Rows]) -> list[torch.Tensor]:
    """In one go for all that draw with the same options."""
    by_options = defaultdict[SamplingParams, list[int]](list)
    for place, rows in enumerate(batch):
        by_options[_draw_options(rows.params)].append(place)
    drawn: dict[int, torch.Tensor] = {}
    for options, places in by_options.items():
        same = [batch[place] for place in places]
        seeds = [rows.params.seed for rows in same for _ in rows.positions]
        positions = [position for rows in same for position in rows.positions]
        tokens = draw_rows(torch.cat([rows.logits for rows in same]), options, seeds, positions)
        each = tokens.split([len(rows.positions) for rows in same])
        drawn |= dict(zip(places, each, strict=True))
    return [drawn[place] for place in range(len(batch))]


def _draw_options(params: SamplingParams) -> SamplingParams:
    """What of the options decides how adjusted rows are drawn from, but for the seed."""
    if params.greedy:
        return SamplingParams()
    return SamplingParams(params.temperature, params.top_k, params.top_p, min_p=params.min_p)


def _defined(batch: Sequence[Rows], place: int) -> torch.Tensor:
    """What is drawn from one of all rows by the definition, int64 []."""
    for logits, params, positions in batch:
        if place < len(positions):
            row = slice(place, place + 1)
            return draw_rows(logits[row], params, [params.seed], positions[row])[0]
        place -= len(positions)
    raise IndexError(place)


def _draws(
    logits: torch.Tensor, params: SamplingParams, positions: Sequence[int]
) -> npt.NDArray[np.void]:
    """What the kernel needs to know of each row, [rows]."""
    draws = np.empty(len(positions), DRAW)
    stride = logits.stride(0) * logits.element_size()
    draws["row"] = logits.data_ptr() + stride * np.arange(len(positions), dtype=np.uint64)
    draws["position"] = positions
    draws["seed"], draws["top_k"] = params.seed, params.top_k
    draws["top_p"], draws["min_p"] = params.top_p, params.min_p
    draws["temperature"] = 0.0 if params.greedy else max(params.temperature, COLDEST)
    return draws


def _likeliest(
    logits: torch.Tensor, params: SamplingParams, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `count` likeliest tokens of each row [rows, vocab], likeliest first, among equals the
    lowest id; their scores; and what makes these log-probabilities after top-k: int64 and float32
    [rows, count], float32 [rows].
    """
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, count, dtype=torch.long)
    scores, logs = torch.empty(rows, count), torch.empty(rows)
    if count:
        draws, build = _draws(logits, params, range(rows)), required_kernels()
        build.library.tandem_likeliest(
            *(c_void_p(draws.ctypes.data), c_long(rows), c_long(vocabulary), c_long(count)),
            *(c_void_p(each.data_ptr()) for each in (ids, scores, logs)),
            c_int(build.sharing(logits.numel())),
        )
    return ids, scores, logs
