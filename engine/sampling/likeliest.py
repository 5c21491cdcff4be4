"""Find the likeliest tokens in rows of logits, and compute log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_int, c_long, c_void_p
from dataclasses import replace

import torch

from tandem.engine.forward.cpu.kernels import required_kernels
from tandem.engine.sampling.drawing import Rows, draws_of, has_kernel
from tandem.engine.sampling.sampler import warp
from tandem.protos.types import SamplingParams, TokenLogprobs

# at least this many of the likeliest tokens are searched for the end of a nucleus (top-p)
MIN_LISTED = 256


def leading(
    logits: torch.Tensor, params: SamplingParams, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` likeliest tokens of each adjusted row [rows, vocab], likeliest first. If
    the vocabulary has fewer than `count` tokens, all of them are returned. Returns token ids and
    log-probabilities, both [rows, count].

    The kernel's log-probabilities differ slightly from those of the reference implementation, but
    they are precise enough for proposals. If a nucleus (top-p) has more tokens than the kernel
    lists, its probability mass is assumed to be exactly top_p.
    """
    count = min(count, logits.shape[-1])
    if not has_kernel(logits):
        top = warp(logits, params).topk(count)
        return top.indices, top.values
    cut = params.top_p < 1 or params.min_p > 0
    listed = min(max(count, MIN_LISTED), logits.shape[-1]) if cut else count
    ids, scores, logs = _likeliest(logits, params, listed)
    logprobs = scores - logs[:, None]
    if cut:
        chances = logprobs.exp()
        before = chances.cumsum(-1) - chances
        before[:, 0] = 0.0  # the likeliest token is always kept
        removed = (before >= params.top_p) & (before > 0)
        if params.min_p:
            removed |= scores < math.log(params.min_p)
        logprobs.masked_fill_(removed, -torch.inf)
        mass = logprobs.exp().sum(-1, keepdim=True)
        ends = logprobs[:, -1:].isneginf() | (listed == logits.shape[-1])
        logprobs -= mass.where(ends, torch.tensor(params.top_p)).log()
    return ids[:, :count], logprobs[:, :count]


def logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `count` likeliest tokens according to the
    model's logits [vocab], before any sampling option is applied.
    """
    return replace(logprobs_of_rows(logits[None], (token,), count)[0], rank=0)


def logprobs_of_rows(
    logits: torch.Tensor, tokens: Sequence[int], count: int
) -> list[TokenLogprobs]:
    """For each row of logits [rows, vocab], return the log-probability and rank of one token, and
    the log-probabilities of the `count` likeliest tokens. `tokens` lists the token of each row.
    """
    scores = logits.log_softmax(-1)
    own = scores.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])
    if has_kernel(scores):
        ids = _likeliest(scores, SamplingParams(1.0), count)[0]
    else:
        ids = scores.topk(count).indices
    ranks = (scores > own).sum(-1, keepdim=True) + 1
    columns = [own, ranks, ids, scores.gather(-1, ids)]
    told = torch.cat([column.double() for column in columns], 1).tolist()  # one copy to the host
    return [
        TokenLogprobs(
            chance, tuple(zip(map(int, both[:count]), both[count:], strict=True)), int(rank)
        )
        for chance, rank, *both in told  # `both` lists the ids, and then their log-probabilities
    ]


def _likeliest(
    logits: torch.Tensor, params: SamplingParams, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the `count` likeliest tokens of each row [rows, vocab], likeliest first. Of equally
    likely tokens, the token with the lowest id comes first. Returns ids, int64 [rows, count];
    scores, float32 [rows, count]; and log normalisers, float32 [rows]. A row's scores minus its log
    normaliser are the log-probabilities after top-k.
    """
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, count, dtype=torch.long)
    scores, logs = torch.empty(rows, count), torch.empty(rows)
    if count:
        draws, build = draws_of([Rows(logits, params, range(rows))]), required_kernels()
        build.library.tandem_likeliest(
            *(c_void_p(draws.ctypes.data), c_long(rows), c_long(vocabulary), c_long(count)),
            *(c_void_p(each.data_ptr()) for each in (ids, scores, logs)),
            c_int(build.sharing(logits.numel())),
        )
    return ids, scores, logs
