"""What drafts of a student would bring, found without the target.

Greedy answers are what the target says at every place of them. So where the student's likeliest
tokens are the answer's, they are what a verifier accepts, and what a chain of drafts brings follows
from the places where both agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import MistralForCausalLM

from tandem.models.distil.answers import Lesson
from tandem.models.distil.teacher import Answer

CHAIN = 4  # tokens of a draft


def tokens_per_step(agreed: Sequence[Sequence[bool]], chain: int = CHAIN) -> float:
    """Tokens that a step emits, on average, with drafts of `chain` tokens; `agreed` are the places
    of each answer where the student's likeliest token is the answer's.
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
    """Tokens per step on greedy answers that the student has not learned from."""
    agreed = []
    for answer in answers:
        lesson = Lesson.of([answer])
        ids = torch.from_numpy(lesson.tokens.astype(np.int64))[None].to(student.device)
        begin = len(answer.prompt) - 1
        logits = student(ids[:, :-1], use_cache=False).logits[0, begin:]
        agreed.append((logits.argmax(-1) == ids[0, begin + 1 :]).tolist())
    return tokens_per_step(agreed)
