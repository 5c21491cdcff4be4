"""The tokenizer of a model: a directory's own, or that of a GGUF file.

A file has a vocabulary, but not always the rules by which a text is split: if they are missing, the
model's `tokenizer.json` has to be in the same folder.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tandem.protos import gguf
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id

NAME = "tokenizer.json"
SPLIT = "gpt-2"  # the one way to split texts that is known here
SPECIAL = (3, 4)  # tokens that control, or that users defined
CONTROL = 3


def tokenizer_of(model: Path) -> Tokenizer:
    """The tokenizer of a model directory or file; raises Unusable."""
    folder = model.parent if gguf.is_gguf(model) else model
    if not (folder / NAME).is_file():
        if gguf.is_gguf(model):
            return _built(model)
        raise Unusable(f"{folder} has no {NAME}: a fast Hugging Face tokenizer is needed")
    if gguf.is_gguf(model):
        own, beside = tokens_by_id(model), tokens_by_id(folder)
        if differing := [index for index in own if own[index] != beside.get(index)]:
            first = differing[0]
            raise Unusable(
                f"{folder / NAME} is not that of {model}: token {first} is"
                f" {beside.get(first)!r}, not {own[first]!r}"
            )
    return Tokenizer.from_file(str(folder / NAME))


def texts_of(model: Path, count: int) -> list[str]:
    """What each of a model's first `count` tokens is by itself, with U+FFFD for parts of letters;
    raises Unusable.
    """
    if not gguf.is_gguf(model):
        ids = [[token] for token in range(count)]
        return tokenizer_of(model).decode_batch(ids, skip_special_tokens=False)
    known = tokens_by_id(model)
    if gguf.metadata(model)["tokenizer.ggml.model"] == "gpt2":
        decoder: decoders.Decoder = decoders.ByteLevel()
    else:
        decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return [decoder.decode([known[token]]) if token in known else "" for token in range(count)]


def _built(file: Path) -> Tokenizer:
    """Made from the file's metadata."""
    metadata, tokens = gguf.metadata(file), tokens_by_id(file)
    kind, split = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
    if (kind, split) != ("gpt2", SPLIT):
        raise Unusable(
            f"{file} splits texts as {kind} {split!r}, which is not known here: put the model's"
            f" {NAME} beside it"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: index for index, text in tokens.items()}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for index, use in enumerate(metadata.get("tokenizer.ggml.token_type", ())):
        if use in SPECIAL and index in tokens:
            added = AddedToken(tokens[index], special=use == CONTROL, normalized=False)
            tokenizer.add_tokens([added])
    if metadata.get("tokenizer.ggml.add_bos_token") and "tokenizer.ggml.bos_token_id" in metadata:
        first = tokens[metadata["tokenizer.ggml.bos_token_id"]]
        pair = (first, metadata["tokenizer.ggml.bos_token_id"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[pair]
        )
    return tokenizer
