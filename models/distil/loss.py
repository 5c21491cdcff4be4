"""How far a student is from its target, of whose distributions the likeliest tokens are known.

The divergence of the target's distribution from the student's, in which all tokens that are not
among the target's likeliest count as one. A student's distribution needs the sum over its whole
vocabulary, which would take most of the time: the tokens that are likeliest anywhere in the batch
are summed up exactly, and all others are estimated from a random sample of them.
"""

from __future__ import annotations

import torch

SAMPLE = 4096  # of the other tokens
LEAST = 1e-6  # of the probability of all others, below which it counts as this


def sampled_columns(
    top: torch.Tensor, vocabulary: int, sample: int, generator: torch.Generator
) -> tuple[torch.Tensor, int]:
    """Tokens to compute logits of, int64: those in `top` first, so many that comes second, and then
    a uniform sample of the others.
    """
    known = torch.zeros(vocabulary, dtype=torch.bool, device=top.device)
    known[top.flatten()] = True
    exact, others = known.nonzero().flatten(), (~known).nonzero().flatten()
    if len(others) > sample:
        places = torch.randint(len(others), (sample,), generator=generator, device=generator.device)
        others = others[places.to(others.device)]
    return torch.cat([exact, others]), len(exact)


def distillation_loss(
    hidden: torch.Tensor,
    embeddings: torch.Tensor,
    top: torch.Tensor,
    logprobs: torch.Tensor,
    generator: torch.Generator,
    sample: int = SAMPLE,
) -> torch.Tensor:
    """The mean divergence in nats, but for a constant, of rows `hidden` [rows, width] with output
    embeddings [vocabulary, width] from distributions whose likeliest tokens are `top` int64
    [rows, k], with `logprobs` [rows, k].
    """
    vocabulary = len(embeddings)
    columns, exact = sampled_columns(top, vocabulary, sample, generator)
    place = torch.zeros(vocabulary, dtype=torch.int64, device=top.device)
    place[columns] = torch.arange(len(columns), device=top.device)
    logits = (hidden @ embeddings[columns].T).float()  # [rows, columns]
    weight = logits.new_zeros(len(columns))
    if len(columns) > exact:
        weight[exact:] = torch.tensor((vocabulary - exact) / (len(columns) - exact)).log()
    whole = torch.logsumexp(logits + weight, -1, keepdim=True)
    found = logits.gather(1, place[top]) - whole  # [rows, k]: the student's log-probabilities
    teacher = logprobs.exp()
    others = (1 - teacher.sum(-1)).clamp(min=0)
    listed = logprobs > -torch.inf  # else there were fewer likely tokens than columns
    rest = torch.log1p(-(found.exp() * listed).sum(-1).clamp(max=1 - LEAST))
    return -((teacher * found).sum(-1) + others * rest).mean()
