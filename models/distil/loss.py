"""The loss of a student: how far its token probabilities are from the target's.

The loss is the divergence between the distributions of target and student. The target's
probabilities are known only for its likeliest tokens. All tokens that are not among the target's
likeliest count as a single token. Computing the student's softmax over the whole vocabulary would
take most of the time. Therefore the denominator of the student's softmax is approximated: tokens
that are among the target's likeliest at any position in the batch are summed exactly, and the sum
over all other tokens is estimated from a random sample.
"""

from __future__ import annotations

import torch

SAMPLED_TOKENS = 4096  # size of the random sample of tokens that are not among the likeliest
MIN_REST = 1e-6  # lower limit for the student's probability of all unlisted tokens together


def sampled_columns(
    top: torch.Tensor, vocabulary: int, sample: int, generator: torch.Generator
) -> tuple[torch.Tensor, int]:
    """Choose the tokens whose logits are computed. Returns int64 token ids: first all distinct
    tokens of `top`, then a uniform sample of the other tokens. Also returns the number of distinct
    tokens of `top`.
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
    a constant. `hidden` [rows, width] are the student's hidden states, and `embeddings`
    [vocabulary, width] are its output embeddings. `top`, int64 [rows, k], are the target's
    likeliest tokens, and `logprobs` [rows, k] are their log-probabilities.
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
    listed = logprobs > -torch.inf  # false where the target listed fewer than k tokens
    rest = torch.log1p(-(found.exp() * listed).sum(-1).clamp(max=1 - MIN_REST))
    return -((teacher * found).sum(-1) + others * rest).mean()
