"""Paths of the models in this folder: the embedded pair, which is a small target and its drafter
trained here on simple English (see README.md), and models to test with.

The modules here make and convert models. They must not import the engine, because these models are
served like any other models. Start reading in `training.train`, which trains the embedded pair.
"""

from pathlib import Path

EMBEDDED = Path(__file__).parent / "embedded"
TARGET = EMBEDDED / "target"
DRAFT = EMBEDDED / "draft"
FOREIGN = Path(__file__).parent / "foreign"  # a drafter whose tokenizer is not the target's
SMOLLM2 = Path(__file__).parent / "smollm2"  # a real model; `make real-model` makes it
SMOLLM2_DRAFT = Path(__file__).parent / "smollm2-draft"  # its drafter, made by `tandem distil`
