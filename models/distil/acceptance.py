"""Estimate how many tokens per step a student's drafts would yield, without running the target.

Every token of a greedy answer is the target's choice. A verifier would therefore accept a draft
token exactly where the student's likeliest token is the answer's token. The positions at which the
student agrees with the answer determine how many tokens a step yields with a draft chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import MistralForCausalLM

from tandem.models.distil.answers import PackedAnswers
from tandem.models.distil.teacher import Answer

CHAIN = 4  # tokens per draft


def tokens_per_step(agreed: Sequence[Sequence[bool]], chain: int = CHAIN) -> float:
    """Return the mean number of tokens that a step emits with drafts of `chain` tokens. `agreed`
    tells, for each position of each answer, whether the student's likeliest token is the answer's
    token.
    """
    tokens = steps = 0
    for places in agreed:
        at = 0
        while at < len(places):
            run = 0
            while run < chain and at + run < len(places) and places[at + run]:
                run += 1
            at += run + 1
            steps += 1
        tokens += len(places)
    return tokens / steps if steps else 0.0


@torch.inference_mode()
def measure(student: MistralForCausalLM, answers: Sequence[Answer]) -> float:
    """Measure a student's tokens per step on greedy answers that it has not learned from."""
    agreed = []
    for answer in answers:
        packed = PackedAnswers.of([answer])
        ids = torch.from_numpy(packed.tokens.astype(np.int64))[None].to(student.device)
        begin = len(answer.prompt) - 1
        logits = student(ids[:, :-1], use_cache=False).logits[0, begin:]
        agreed.append((logits.argmax(-1) == ids[0, begin + 1 :]).tolist())
    return tokens_per_step(agreed)
