"""Compute a model's reference logits: the logits of three texts at some positions, computed by the
network as transformers loaded it, before any of its layers are replaced.

The main text is prose, code, lists and a chat in several languages, as people write them. This
module does not depend on how the self-test feeds these texts to the engine.
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
from tandem.engine.model.rounding import ReferenceText, ReferenceTexts
from tandem.protos.errors import Unusable
from tandem.protos.tokenizer import tokenizer_of

LEAD = 256  # tokens of the prompt; enough to keep several threads busy when fed in one piece
STREAM = 48  # number of tokens after the prompt
# position at which the side text branches off the main text, and the length of the branch
FORK, BRANCH = 120, 8
OTHER = 160  # number of tokens in the text of another session
SPREAD = 16  # distance between positions of the prompt whose logits are kept
TEXT = """\
The harbour was quiet when Ines came down the hill with two buckets of paint. "Blue or green?" her
brother asked, and she laughed, because they had talked about little else for 11 days. The boat had
been their grandfather's; its wood was grey, the engine coughed, and nobody in the village believed
that it would ever reach the islands again.

def area(width: float, height: float = 2.5) -> float:
    # metres, not feet
    return width * height if width > 0 else 0.0

In 1969 the committee met four times. Its report (see table 3) gives 48.7 % for the first region
and 51.3 % for the second; the difference was smaller than its authors had hoped. Les enfants jouent
dans le jardin, il fait beau. Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung. El mercado
abre a las ocho. 東京は日本の首都です。 Она читает книгу.

- Boil one litre of water and add salt.
- Stir in 200 g of rice; wait for 12 minutes.
- Serve hot, with lemon: "simple, cheap and good".

User: What is the capital of Australia?
Assistant: The capital of Australia is Canberra. Many people think that it is Sydney, which is the
largest city, but Canberra was chosen in 1908 as a compromise between Sydney and Melbourne.
"""


@dataclass(frozen=True, slots=True)
class ReferenceLogits:
    """The reference logits of three texts: `main` is prose, `side` begins like `main` and ends with
    other tokens, and `other` is a text of random tokens, for another session.
    """

    main: ReferenceText
    side: ReferenceText
    other: ReferenceText
    smooth: bool  # whether rounding changes every row of logits only slightly

    @property
    def lead(self) -> int:
        """The number of tokens in the prompt of the main text. The tokens after the prompt are
        called the stream.
        """
        return max(len(self.main.tokens) - STREAM, 0)

    @property
    def fork(self) -> int:
        """The number of leading tokens that the main text and the side text have in common."""
        return branching(len(self.main.tokens)).start

    def release(self) -> None:
        """Delete the logits of all three texts, to free their memory."""
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
    text of the other session has OTHER tokens; both have fewer if the context is shorter. The texts
    are encoded with the tokenizer of the directory or file `model`. The message of an Unusable
    error continues a sentence that begins with the name of the network's class.
    """
    rng, longest = random.Random(0), text_length(found.context_length)
    some = partial(rng.choices, range(found.vocab_size))
    tokens, other = prose(model, found.vocab_size, longest), some(k=min(OTHER, longest))
    branch = list(branching(longest))
    known = sorted({*_positions(longest), *range(longest)[-STREAM:], *branch})
    fused = network._supports_sdpa and all(layer.fused for layer in found.layers)
    texts = ReferenceTexts(network, dtype, fused)
    try:
        main = texts.of(tokens, known)
        side = texts.of(tokens[: branch[0]] + some(k=len(branch)), branch)
        beside = texts.of(other, _positions(len(other)))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unusable(f"fails in an ordinary forward pass ({reason})") from error
    return ReferenceLogits(main, side, beside, texts.smooth)


def branching(length: int) -> range:
    """Return the positions at which the side text differs from a main text of `length` tokens."""
    fork = max(0, min(FORK, length - BRANCH))
    return range(fork, min(fork + BRANCH, length))


def _positions(count: int) -> list[int]:
    """Return the positions of a text at which logits are kept: some positions throughout the text,
    and the positions on either side of each boundary between blocks, tails and prefixes.
    """
    cuts = {0, 1, STEP - 1}
    return [each for each in range(count) if each % STEP in cuts or each % SPREAD == 4]


def prose(model: Path, vocabulary: int, count: int) -> list[int]:
    """Return `count` tokens of TEXT, repeating TEXT if it is shorter. TEXT is encoded with the
    tokenizer of a model directory or file, which adds its special tokens. Raises Unusable if the
    tokenizer cannot be read.
    """
    try:
        ids = tokenizer_of(model).encode(TEXT).ids
    except Unusable:
        raise
    except Exception as error:  # the library may raise any error
        raise Unusable(f"has a tokenizer.json that cannot be read ({error})") from error
    known = [token % vocabulary for token in ids] or [0]
    return [known[index % len(known)] for index in range(count)]
