"""Loads the tokenizer of a model directory, or builds the tokenizer of a GGUF file.

A GGUF file contains the whole vocabulary. Of the rules that split a text into words, a GGUF file
contains only the name. If this module does not know the rules of a GGUF file, the model's
`tokenizer.json` has to be in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tandem.protos import gguf
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id

NAME = "tokenizer.json"
SPACE = "\u2581"  # SentencePiece's character for a space
SPECIAL = (3, 4)  # GGUF's token types for control tokens and user-defined tokens
CONTROL = 3

# Pre-tokenization rules: how byte-level BPE tokenizers split a text before they merge bytes. The
# names are those in GGUF files, the patterns those of the models' own tokenizers.
GPT2, DIGITS = "gpt-2", "digits"
"""The rules of GPT-2, and the same rules with every digit as a separate piece."""
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_QWEN2 = _CONTRACTED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTED}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTED}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)

SPLITS = {
    "gpt-2": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "command-r": DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
}
WHOLE_WORDS = ("llama-bpe", "llama-v3", "llama3", "falcon3", "tekken")
"""Rules whose tokenizers do no merging within a piece that is a token as a whole."""
COMPOSED = ("qwen2",)
"""Rules whose tokenizers first normalize the text to NFC."""


def tokenizer_of(model: Path) -> Tokenizer:
    """Return the tokenizer of a model directory or GGUF file. Raises Unusable if there is no usable
    tokenizer.
    """
    folder = model.parent if gguf.is_gguf(model) else model
    if gguf.is_gguf(model) and not _beside(model):
        return _built(model)
    if not (folder / NAME).is_file():
        raise Unusable(f"{folder} has no {NAME}: a fast Hugging Face tokenizer is needed")
    return Tokenizer.from_file(str(folder / NAME))


def texts_of(model: Path, count: int) -> list[str]:
    """Return the texts of the token ids below `count`, each decoded on its own. Raises Unusable if
    the tokens cannot be read. If a token is only a part of a character, its text contains U+FFFD.
    """
    if not gguf.is_gguf(model):
        ids = [[token] for token in range(count)]
        return tokenizer_of(model).decode_batch(ids, skip_special_tokens=False)
    known = tokens_by_id(model)
    if gguf.metadata(model)["tokenizer.ggml.model"] == "gpt2":
        decoder: decoders.Decoder = decoders.ByteLevel()
    else:
        decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback()])
    return [decoder.decode([known[token]]) if token in known else "" for token in range(count)]


def _beside(file: Path) -> bool:
    """Tell whether a GGUF file needs the tokenizer.json in its folder, because this module does not
    know the rules of the file. Raises Unusable if that tokenizer.json is missing, or if its tokens
    differ from those of the GGUF file.
    """
    known, folder = gguf.metadata(file), file.parent
    split = known.get("tokenizer.ggml.pre", "default")
    if known.get("tokenizer.ggml.model") == "llama" or split in SPLITS:
        return False
    if not (folder / NAME).is_file():
        raise Unusable(
            f"{file} splits texts with the rules {known.get('tokenizer.ggml.model')} {split!r},"
            f" which Tandem does not know: put the model's {NAME} beside it"
        )
    own, beside = tokens_by_id(file), tokens_by_id(folder)
    if differing := [index for index in own if own[index] != beside.get(index)]:
        first = differing[0]
        raise Unusable(
            f"{folder / NAME} is not the tokenizer of {file}:"
            f" token {first} is {beside.get(first)!r}, not {own[first]!r}"
        )
    return True


def _built(file: Path) -> Tokenizer:
    """Build a tokenizer from a GGUF file's metadata."""
    metadata, tokens = gguf.metadata(file), tokens_by_id(file)
    of_bytes = metadata["tokenizer.ggml.model"] == "gpt2"
    tokenizer = _of_bytes(metadata, tokens) if of_bytes else _of_pieces(metadata, tokens)
    for index, use in enumerate(metadata.get("tokenizer.ggml.token_type", ())):
        if use in SPECIAL and index in tokens:
            added = AddedToken(tokens[index], special=use == CONTROL, normalized=False)
            tokenizer.add_tokens([added])
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", not of_bytes) and first in tokens:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[first]} $A", special_tokens=[(tokens[first], first)]
        )
    return tokenizer


def _of_bytes(metadata: Mapping[str, Any], tokens: Mapping[int, str]) -> Tokenizer:
    """Build a byte-level BPE tokenizer."""
    split = metadata["tokenizer.ggml.pre"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {text: index for index, text in tokens.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in WHOLE_WORDS))
    pattern = SPLITS[split]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern in (GPT2, DIGITS))
    if pattern == GPT2:
        tokenizer.pre_tokenizer = plain
    elif pattern == DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, plain])
    else:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, plain])
    if split in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _of_pieces(metadata: Mapping[str, Any], tokens: Mapping[int, str]) -> Tokenizer:
    """Build a SentencePiece BPE tokenizer, with merges derived from the scores of the tokens."""
    vocabulary = {text: index for index, text in tokens.items()}
    scores = metadata.get("tokenizer.ggml.scores") or [-index for index in range(len(tokens))]
    merges = []
    for text, index in vocabulary.items():
        halves = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        merges += [
            (scores[index], len(left), len(right), left, right)
            for left, right in halves
            if left in vocabulary and right in vocabulary
        ]
    merges.sort(key=lambda each: each[:3], reverse=True)
    model = models.BPE(
        vocabulary,
        [(left, right) for *_, left, right in merges],
        fuse_unk=True,
        byte_fallback=True,
        unk_token=tokens.get(metadata.get("tokenizer.ggml.unknown_token_id", 0)),
    )
    tokenizer = Tokenizer(model)
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    cleaned: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    shown = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        cleaned.insert(0, normalizers.Prepend(SPACE))
        shown.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(cleaned)
    tokenizer.decoder = decoders.Sequence(shown)
    return tokenizer
