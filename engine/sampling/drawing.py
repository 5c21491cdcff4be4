"""Draw tokens from rows of logits of many sessions at once.

`engine.sampling.sampler.draw_rows` is the reference implementation of a draw. The reference
implementation is used wherever there is no compiled kernel. The kernels (`draw.cpp`, and
`device_draws` on a CUDA device) draw the same tokens as the reference implementation. If rounding
errors could change the token of a row, the kernels leave that row to the reference implementation.
The kernels treat each row separately, so no draw depends on other rows or on the number of threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from ctypes import c_int, c_long, c_void_p
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.forward.cpu.kernels import kernels, required_kernels
from tandem.engine.sampling.device_draws import NAN, UNSURE, draw_on_device
from tandem.engine.sampling.sampler import COLDEST, draw_rows
from tandem.protos.types import SamplingParams

TRIAL_VOCABULARY = 3000  # vocabulary size of the row on which a kernel is tested
DRAW = np.dtype(  # same layout as in draw.cpp
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
    """Adjusted rows of logits [rows, vocab]; one token is drawn from each row, at the row's own
    position.
    """

    logits: torch.Tensor
    params: SamplingParams
    positions: Sequence[int]


def draw_batch(batch: Sequence[Rows]) -> list[torch.Tensor]:
    """Draw a token from each row of all `Rows` in a batch. All rows must have the same vocabulary.
    Returns int64 [rows] for each of the `Rows`, on their device, without waiting for the device.
    The result of a row with a NaN is `NAN`. On a CUDA device, the result is `UNSURE` if rounding
    errors could change the token. The function `decided` replaces the codes `NAN` and `UNSURE` by
    tokens.
    """
    if not batch:
        return []
    counts = [len(rows.positions) for rows in batch]
    vocabulary, device = batch[0].logits.shape[-1], batch[0].logits.device
    if all(has_kernel(rows.logits) for rows in batch):
        return list(_on_processor(batch, vocabulary).split(counts))
    if all(has_device_kernel(rows.logits) for rows in batch):
        return list(draw_on_device(draws_of(batch), vocabulary, device).split(counts))
    return _as_defined(batch)


def decided(rows: Rows, drawn: Sequence[int]) -> list[int]:
    """Return `drawn` with every code `UNSURE` or `NAN` replaced by a token that the reference
    implementation draws.
    """
    logits, params, positions = rows
    left = [row for row, token in enumerate(drawn) if token < 0]
    if not left:
        return list(drawn)
    seeds = [params.seed] * len(left)
    asked = draw_rows(logits[left], params, seeds, [positions[row] for row in left]).tolist()
    tokens = dict(zip(left, asked, strict=True))
    return [tokens.get(row, token) for row, token in enumerate(drawn)]


def draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """Draw the token at a position from an adjusted row of logits [vocab]."""
    rows = Rows(logits[None], params, (position,))
    return decided(rows, draw_batch([rows])[0].tolist())[0]


def has_kernel(logits: torch.Tensor) -> bool:
    """Return whether the compiled CPU kernel can draw from rows of logits [..., vocab]."""
    plain = logits.dtype == torch.float32 and logits.stride(-1) == 1
    return plain and logits.device.type == "cpu" and kernels() is not None


def has_device_kernel(logits: torch.Tensor) -> bool:
    """Return whether the CUDA kernel can draw from rows of logits [..., vocab]."""
    plain = logits.dtype == torch.float32 and logits.stride(-1) == 1
    return plain and logits.device.type == "cuda" and _device_problem(logits.device) is None


def prepare(device: torch.device, vocabulary: int) -> str | None:
    """Compile the CUDA kernel that draws tokens, which takes seconds. Returns the reason if the
    kernel cannot be used. Returns None if the kernel can be used, or if the device is not a CUDA
    device.
    """
    if device.type != "cuda":
        return None
    row = torch.zeros(1, vocabulary, device=device)
    draw_batch([Rows(row, SamplingParams(1.0), (0,))])
    return _device_problem(row.device)


@cache
def _device_problem(device: torch.device) -> str | None:
    """Test the kernel that draws tokens on a CUDA device. Returns the reason if the kernel cannot
    be used, else None.
    """
    row = torch.zeros(1, TRIAL_VOCABULARY, device=device)
    row[0, -1] = 1.0
    try:
        drawn = draw_on_device(
            draws_of([Rows(row, SamplingParams(), (0,))]), TRIAL_VOCABULARY, device
        )
        return None if drawn.tolist() == [TRIAL_VOCABULARY - 1] else "it draws a wrong token"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton or its compilers may be missing, or may not know the device
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _as_defined(batch: Sequence[Rows]) -> list[torch.Tensor]:
    """Sample tokens with the reference implementation, in one call per set of sampling options."""
    by_options = defaultdict[SamplingParams, list[int]](list)
    for number, rows in enumerate(batch):
        by_options[_draw_options(rows.params)].append(number)
    drawn: dict[int, torch.Tensor] = {}
    for options, numbers in by_options.items():
        same = [batch[number] for number in numbers]
        seeds = [rows.params.seed for rows in same for _ in rows.positions]
        positions = [position for rows in same for position in rows.positions]
        logits = torch.cat([rows.logits for rows in same])
        tokens = draw_rows(logits, options, seeds, positions)
        tokens.masked_fill_(logits.amax(-1).isnan(), NAN)  # the maximum is NaN if any logit is NaN
        each = tokens.split([len(rows.positions) for rows in same])
        drawn |= dict(zip(numbers, each, strict=True))
    return [drawn[number] for number in range(len(batch))]


def _draw_options(params: SamplingParams) -> SamplingParams:
    """Return only the options that affect a draw from adjusted rows, and leave out the seed."""
    if params.greedy:
        return SamplingParams()
    return SamplingParams(params.temperature, params.top_k, params.top_p, min_p=params.min_p)


def _on_processor(batch: Sequence[Rows], vocabulary: int) -> torch.Tensor:
    """Sample one token per row with the compiled CPU kernel. Returns int64 [rows]. The reference
    implementation draws from the rows that the kernel leaves undecided.
    """
    draws, build = draws_of(batch), required_kernels()
    tokens = torch.empty(len(draws), dtype=torch.long)
    build.library.tandem_draw(
        *(c_void_p(draws.ctypes.data), c_long(len(draws)), c_long(vocabulary)),
        *(c_void_p(tokens.data_ptr()), c_int(build.sharing(len(draws) * vocabulary))),
    )
    if bool((tokens < 0).any()):
        parts = tokens.split([len(rows.positions) for rows in batch])
        for rows, part in zip(batch, parts, strict=True):
            for row in np.flatnonzero(part.numpy() == UNSURE).tolist():
                only = slice(row, row + 1)
                one = Rows(rows.logits[only], rows.params, rows.positions[only])
                part[row] = NAN if one.logits.isnan().any() else decided(one, (UNSURE,))[0]
    return tokens


def draws_of(batch: Sequence[Rows]) -> npt.NDArray[np.void]:
    """Return the table [rows] that tells a kernel where each row of logits is and how to draw from
    it.
    """
    each = [_options(rows) for rows in batch]
    counts = [len(rows.positions) for rows in batch]
    draws = np.repeat(np.array(each, DRAW), counts)
    strides = [rows.logits.stride(0) * rows.logits.element_size() for rows in batch]
    numbers = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    draws["row"] += np.repeat(np.array(strides, np.uint64), counts) * numbers
    draws["position"] = [position for rows in batch for position in rows.positions]
    return draws


def _options(rows: Rows) -> tuple[float, ...]:
    """Return the kernel's table entry for the first row of `rows`, with position 0."""
    params = rows.params
    temperature = 0.0 if params.greedy else max(params.temperature, COLDEST)
    cuts = params.top_k, params.top_p, params.min_p
    return (rows.logits.data_ptr(), params.seed, 0, *cuts, temperature)
