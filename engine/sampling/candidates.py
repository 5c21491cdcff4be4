"""A draw from a vocabulary of any size, with exact noise for those few tokens alone that can be it.

`engine.sampling.sampler.draws` defines what is drawn: the maximum of log-probability plus noise.
What normalises log-probabilities does not matter for that, and neither does the noise of a token
that even so stays below the best of the likeliest ones. Who may win is found from the bits of the
noise.
"""

from __future__ import annotations

import torch

from tandem.engine.sampling.noise import gumbel, ids_above
from tandem.engine.sampling.shortlist import MARGIN, SIZE, Shortlist
from tandem.protos.types import SamplingParams


def draw_from_shortlist(
    row: torch.Tensor, params: SamplingParams, position: int, size: int = SIZE
) -> int | None:
    """What is drawn for a position from an adjusted row [vocab] on the processor, temperature above
    0; None, rarely, where rounding could decide.
    """
    short = Shortlist(row, params, size)
    if not short.sure:
        return None
    ids, scores, keys = _candidates(row, params, position, short)
    while True:
        best = keys.topk(min(2, len(keys)))
        if len(keys) > 1 and not best.values[0] - best.values[1] > MARGIN:
            return None
        place = int(best.indices[0])
        token = int(ids[place])
        if place < short.sure:
            return token
        kept = None if place < short.possible else short.keeps(token)
        if kept is not False:
            return token if kept else None
        keys[scores <= scores[place]] = -torch.inf  # what is less likely is not kept either


def _candidates(
    row: torch.Tensor, params: SamplingParams, position: int, short: Shortlist
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tokens that may be drawn if they are kept, those of the list first: ids, scores, and
    scores with noise, all [tokens].
    """
    ids, scores = short.ids[: short.possible], short.scores[: short.possible].double()
    keys = scores + gumbel(params.seed, position, ids)
    if short.whole:
        return ids, scores, keys
    missing = float(keys[: short.sure].max() - scores[-1]) - MARGIN
    others = ids_above(params.seed, position, len(row), missing)
    others = others[row[others] < row[ids[-1]]]
    behind = short.score(others).double()
    noisy = behind + gumbel(params.seed, position, others)
    return torch.cat([ids, others]), torch.cat([scores, behind]), torch.cat([keys, noisy])
