"""The model card of a draft model: what it is, what it was made from, what was measured."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from tandem.models.distil.acceptance import CHAIN
from tandem.models.distil.course import Course
from tandem.models.distil.student import WINDOW, Shape

CARD = """# A draft model for {target}

`tandem distil` made this model on {day}. It proposes tokens for `{target}`, which decides what is
accepted. It is of no use by itself.

| | |
|---|---|
| architecture | Mistral, {layers} layers, width {width}, window of {window} tokens |
| parameters | {parameters:,} |
| tokenizer | the target's |
| learned from | {tokens:,} tokens of the target's own answers |
| training | {minutes:.0f} minutes, {steps:,} steps |
| tokens per step | {best:.2f}: chains of {chain}, temperature 0, answers to other prompts |

    tandem up --target {target} --draft {out}
"""


def write(out: Path, target: Path, shape: Shape, tokens: int, course: Course) -> None:
    """Write the card beside the model, as README.md."""
    text = CARD.format(
        target=target,
        out=out,
        day=date.today().isoformat(),
        layers=shape.layers,
        width=shape.width,
        window=WINDOW,
        parameters=shape.parameters,
        tokens=tokens,
        minutes=course.minutes,
        steps=course.step,
        best=course.looks[-1],
        chain=CHAIN,
    )
    (out / "README.md").write_text(text, encoding="utf-8")
