"""The notebooks' original loops: transformers on models in memory, with a forward pass for every
token. The loops on Tandem are compared with these loops.

The notebooks' loops use no service and no code of Tandem except the noise: `torch.multinomial`
cannot reproduce another program's draws, so the notebooks' draws use keyed noise here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem.engine.sampling.noise import gumbel


@dataclass(slots=True)
class Model:
    """A model that transformers runs, with a record of everything that it was asked."""

    network: Any
    known: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    @torch.inference_mode()
    def last_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after the last token, [vocab]."""
        if tuple(ids) not in self.known:
            output = self.network(torch.tensor([ids]), use_cache=False)
            self.known[tuple(ids)] = output.logits[0, -1]
        return self.known[tuple(ids)]

    def top1(self, ids: Sequence[int]) -> int:
        """Return the greedy next token."""
        return int(self.last_logits(ids).argmax())


@dataclass(frozen=True, slots=True)
class Notebook:
    """The objects that each notebook sets up first."""

    tokenizer: Any
    target: Model
    draft: Model

    @classmethod
    def of(cls, target: Path, draft: Path) -> Notebook:
        """Load both models in float32 from their directories."""
        models = [
            Model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
            for folder in (target, draft)
        ]
        return cls(AutoTokenizer.from_pretrained(target), *models)

    def encode(self, prompt: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self.tokenizer(prompt)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of token ids, without changes."""
        return str(
            self.tokenizer.decode(
                ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def assisted(
        self, ids: list[int], max_new_tokens: int, schedule: str, threshold: float
    ) -> list[int]:
        """Run transformers' own assisted generation, greedy, with 20 candidates at first."""
        config = self.draft.network.generation_config
        # reset each time, because the heuristic stores its last number here
        config.num_assistant_tokens = 20
        config.num_assistant_tokens_schedule = schedule
        config.assistant_confidence_threshold = threshold
        return self.generate(ids, max_new_tokens, assistant_model=self.draft.network)

    def generate(self, ids: list[int], max_new_tokens: int, **options: Any) -> list[int]:
        """Run transformers' `generate()`, greedy."""
        inputs = torch.tensor([ids])
        output = self.target.network.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
            do_sample=False,
            **options,
        )
        tokens: list[int] = output[0].tolist()
        return tokens


def rollout(book: Notebook, ids: list[int], first: int, span: int) -> list[int]:
    """Return a first token and the draft model's greedy tokens after it, `span` in all."""
    sequence = [first]
    for _ in range(span - 1):
        sequence.append(book.draft.top1(ids + sequence))
    return sequence


# --- Medusa-lite


@dataclass(frozen=True, slots=True)
class Candidate:
    """A branch, how many of its tokens were accepted, its score, and all tokens if it is kept."""

    tokens: list[int]
    accepted: list[int]
    mismatched: bool
    score: int
    ids: list[int]


def is_visible(book: Notebook, token: int) -> bool:
    """Return whether a token alone is more than white space, and not a part of a character."""
    text = book.decode([token], special=True)
    return "\ufffd" not in text and any(c.isprintable() and not c.isspace() for c in text)


def sample_first_tokens(
    book: Notebook, ids: list[int], k: int, temperature: float, seed: int, top_p: float = 0.95
) -> list[int]:
    """Return up to k visible tokens of the nucleus, drawn without replacement: the largest log p +
    Gumbel noise are such a draw.
    """
    probs = (book.draft.last_logits(ids) / temperature).softmax(-1)
    sorted_p, sorted_ix = probs.sort(descending=True)
    keep = sorted_p.cumsum(0) <= top_p
    keep[0] = True
    visible = [token for token in sorted_ix[keep].tolist() if is_visible(book, token)]
    if not visible:
        return [int(sorted_ix[0])]
    pool_p = probs[visible] / probs[visible].sum()
    keys = pool_p.log() + gumbel(seed, len(ids), torch.tensor(visible))
    return [visible[pick] for pick in keys.argsort(descending=True)[:k].tolist()]


def evaluate(book: Notebook, ids: list[int], branch: list[int]) -> Candidate:
    """Accept tokens until the verifier's greedy token differs, which is committed instead."""
    current, accepted, mismatched = list(ids), list[int](), False
    for token in branch:
        prediction = book.target.top1(current)
        current.append(prediction)
        if prediction != token:
            mismatched = True
            break
        accepted.append(token)
    score = len(accepted) - (1 if mismatched else 0)
    return Candidate(branch, accepted, mismatched, score, current)


def medusa_generate(
    book: Notebook,
    prompt: str,
    max_new_tokens: int,
    k_branches: int,
    span: int,
    temperature: float,
    seed: int,
) -> tuple[str, list[tuple[list[Candidate], Candidate]]]:
    """Return the normalised text and, for each step, all branches and the one that was kept."""
    ids, steps = book.encode(prompt), []
    start_len = len(ids)
    for _ in range(math.ceil(max_new_tokens / span)):
        firsts = sample_first_tokens(book, ids, k_branches, temperature, seed)
        candidates = [evaluate(book, ids, rollout(book, ids, first, span)) for first in firsts]
        best = candidates[0]
        for candidate in candidates[1:]:
            if candidate.score > best.score:
                best = candidate
        ids = best.ids
        steps.append((candidates, best))
        if len(ids) - start_len >= max_new_tokens:
            break
    return " ".join(book.decode(ids).replace("\u00a0", " ").split()), steps


# --- The minimal loop


def target_sample_one(book: Notebook, ids: list[int], temperature: float, seed: int) -> int:
    """Draw one token from the target at a temperature."""
    scores = (book.target.last_logits(ids) / max(1e-6, temperature)).log_softmax(-1)
    return int((scores + gumbel(seed, len(ids), torch.arange(len(scores)))).argmax())


def speculative_generate_minimal(
    book: Notebook, prompt: str, max_new_tokens: int, k: int, target_temp: float, seed: int
) -> tuple[str, list[tuple[list[int], int]]]:
    """Return the text and, for each cycle, the proposed tokens and how many were accepted."""
    ids, cycles = book.encode(prompt), []
    base_len = len(ids)
    while len(ids) - base_len < max_new_tokens:
        proposed = rollout(book, ids, book.draft.top1(ids), k)
        accepted = 0
        for token in proposed:
            if book.target.top1(ids) != token:
                ids = [*ids, target_sample_one(book, ids, target_temp, seed)]
                break
            ids = [*ids, token]
            accepted += 1
        if accepted == 0 and len(ids) - base_len < max_new_tokens:
            ids = [*ids, book.target.top1(ids)]
        cycles.append((proposed, accepted))
    return book.decode(ids), cycles
