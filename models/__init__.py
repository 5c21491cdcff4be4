"""Paths of the models in this folder: the embedded pair, and other models for tests.

The embedded pair is a small target and its draft model, both trained on simple English (see
README.md). The modules here train and convert models. They must not import the engine, because
these models are served like any other models. To understand this package, read `training.train`
first, which trains the embedded pair.
"""

from pathlib import Path

EMBEDDED = Path(__file__).parent / "embedded"
TARGET = EMBEDDED / "target"
DRAFT = EMBEDDED / "draft"
FOREIGN = Path(__file__).parent / "foreign"  # a draft model with another tokenizer
SMOLLM2 = Path(__file__).parent / "smollm2"  # created by `make real-model`
SMOLLM2_DRAFT = Path(__file__).parent / "smollm2-draft"  # created by `tandem distil`
