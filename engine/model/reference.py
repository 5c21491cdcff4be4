"""Compute the reference of a model: the logits of three texts at some places, by the network as
transformers loaded it, before any of its layers are replaced.

This module does not know how the self-test feeds these texts to the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from tandem.engine.forward.cuda.rows import STEP
from tandem.engine.model.probe import ProbeResult
from tandem.engine.model.prose import prose
from tandem.engine.model.rounding import ReferenceText, ReferenceTexts
from tandem.protos.errors import Unusable

LEAD = 256  # tokens of the prompt, which keeps several threads busy when it is fed whole
STREAM = 48  # tokens after the prompt
FORK, BRANCH = 120, 8  # where the side text leaves the main one, and its own tokens after that
OTHER = 160  # tokens of the text of another session
SPREAD = 16  # tokens from one known row of the prompt to the next


@dataclass(frozen=True, slots=True)
class ReferenceLogits:
    """The reference logits of three texts: `main` is prose, `side` begins like `main` and ends with
    other tokens, and `other` is a text of random tokens, for another session.
    """

    main: ReferenceText
    side: ReferenceText
    other: ReferenceText
    smooth: bool  # whether rounding moves no row far

    @property
    def lead(self) -> int:
        """The number of tokens of the main text that are its prompt; the rest is its stream."""
        return max(len(self.main.tokens) - STREAM, 0)

    @property
    def fork(self) -> int:
        """The number of tokens that the main and the side text have in common."""
        return branching(len(self.main.tokens)).start

    def release(self) -> None:
        """Forget the logits of all three texts, to free their memory."""
        for text in (self.main, self.side, self.other):
            text.logits.clear()


def text_length(context: int) -> int:
    """Return the length of the main text, in tokens, for a model with this context length."""
    return min(LEAD + STREAM, context)


@torch.inference_mode()
def reference_logits(
    network: PreTrainedModel, found: ProbeResult, dtype: torch.dtype, model: Path
) -> ReferenceLogits:
    """Compute the reference logits of a network. The main text has LEAD + STREAM tokens, and the
    other one OTHER, or fewer where the context is shorter. The directory or file `model` has the
    tokenizer. Raises Unusable with a text that follows the name of the network's class.
    """
    rng, longest = random.Random(0), text_length(found.context_length)
    some = partial(rng.choices, range(found.vocab_size))
    tokens, other = prose(model, found.vocab_size, longest), some(k=min(OTHER, longest))
    branch = list(branching(longest))
    known = sorted({*_places(longest), *range(longest)[-STREAM:], *branch})
    fused = network._supports_sdpa and all(layer.fused for layer in found.layers)
    texts = ReferenceTexts(network, dtype, fused)
    try:
        main = texts.of(tokens, known)
        side = texts.of(tokens[: branch[0]] + some(k=len(branch)), branch)
        beside = texts.of(other, _places(len(other)))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unusable(f"fails a plain pass ({reason})") from error
    return ReferenceLogits(main, side, beside, texts.smooth)


def branching(length: int) -> range:
    """Return the places at which the side text has other tokens than a main text of `length`."""
    fork = max(0, min(FORK, length - BRANCH))
    return range(fork, min(fork + BRANCH, length))


def _places(count: int) -> list[int]:
    """Return the places of a text whose logits are kept: some all over it, and those on either side
    of every cut of blocks, tails and prefixes.
    """
    return [
        place for place in range(count) if place % STEP in (0, 1, STEP - 1) or place % SPREAD == 4
    ]
