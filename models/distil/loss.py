"""The loss of a student: how far it is from a target of which only the likeliest tokens are known.

The loss is the divergence between the distributions of target and student. All tokens that are not
among the target's likeliest count as a single token. A student's distribution needs a sum over its
whole vocabulary, which would take most of the time. The tokens that are likeliest anywhere in the
batch are therefore summed exactly, and the others are estimated from a random sample.
"""

from __future__ import annotations

import torch

SAMPLED_TOKENS = 4096  # size of the sample of all tokens that are not the likeliest ones
MIN_REST = 1e-6  # the student's probability of all other tokens counts as at least this


def sampled_columns(
    top: torch.Tensor, vocabulary: int, sample: int, generator: torch.Generator
) -> tuple[torch.Tensor, int]:
    """Choose the tokens to compute logits of. Returns int64 token ids, first all tokens of `top`
    and then a uniform sample of the others, and how many tokens of `top` there are.
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
    sample: int = SAMPLED_TOKENS,
) -> torch.Tensor:
    """Return the mean divergence between the distributions of student and target, in nats and up to
    a constant. The student has the hidden rows `hidden` [rows, width] and output `embeddings`
    [vocabulary, width]; the target's likeliest tokens are `top`, int64 [rows, k], with `logprobs`
    [rows, k].
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
    listed = logprobs > -torch.inf  # false where there were fewer likely tokens than columns
    rest = torch.log1p(-(found.exp() * listed).sum(-1).clamp(max=1 - MIN_REST))
    return -((teacher * found).sum(-1) + others * rest).mean()
