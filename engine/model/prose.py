"""A text as people write it, for trying a model: prose, code, lists, a chat, several languages."""

from __future__ import annotations

from pathlib import Path

from tandem.protos.errors import Unusable
from tandem.protos.tokenizer import tokenizer_of

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


def prose(model: Path, vocabulary: int, count: int) -> list[int]:
    """Return `count` tokens of a text as people write it, repeated if it is shorter. The tokenizer
    is that of a model directory or file, and adds its special tokens. Raises Unusable if it cannot
    be read.
    """
    try:
        ids = tokenizer_of(model).encode(TEXT).ids
    except Unusable:
        raise
    except Exception as error:  # whatever the library raises
        raise Unusable(f"has a tokenizer.json that cannot be read ({error})") from error
    known = [token % vocabulary for token in ids] or [0]
    return [known[place % len(known)] for place in range(count)]
