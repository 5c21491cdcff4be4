"""What a network computes as transformers loaded it, before anything of it is replaced: the logits
of three texts at some places.

Knows nothing of how texts are fed to us.
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

LEAD = 256  # tokens of a prompt: fed whole it keeps several threads busy
STREAM = 48  # tokens after it
FORK, BRANCH = 120, 8  # tokens of a text that leaves the first one there, and of its own
OTHER = 160  # tokens of a text that has nothing to do with it
SPREAD = 16  # tokens from one known row to the next, in the prompt


@dataclass(frozen=True, slots=True)
class ReferenceLogits:
    """Three texts: `main` is prose, `side` begins like it and ends with other tokens, `other` is
    random tokens of another session.
    """

    main: ReferenceText
    side: ReferenceText
    other: ReferenceText
    smooth: bool  # rounding moves no row far

    @property
    def lead(self) -> int:
        """How many tokens of the main text are a prompt; the rest is a stream."""
        return max(len(self.main.tokens) - STREAM, 0)

    @property
    def fork(self) -> int:
        """How many tokens the first two texts have in common."""
        return branching(len(self.main.tokens)).start

    def release(self) -> None:
        """Forget the logits."""
        for text in (self.main, self.side, self.other):
            text.logits.clear()


def text_length(context: int) -> int:
    """Tokens of the main text of a model with such a context."""
    return min(LEAD + STREAM, context)


@torch.inference_mode()
def reference_logits(
    network: PreTrainedModel, found: ProbeResult, dtype: torch.dtype, model: Path
) -> ReferenceLogits:
    """What a network computes of texts that are as long as it allows; the directory or file `model`
    has its tokenizer. Raises Unusable with words that follow the name of its class.
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
    """The places of a main text of such a length at which the side text has other tokens."""
    fork = max(0, min(FORK, length - BRANCH))
    return range(fork, min(fork + BRANCH, length))


def _places(count: int) -> list[int]:
    """Places all over a text, and on either side of every cut: of blocks, of tails, of prefixes."""
    return [
        place for place in range(count) if place % STEP in (0, 1, STEP - 1) or place % SPREAD == 4
    ]
