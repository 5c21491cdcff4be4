"""How byte-level tokenizers split a text before they merge, by the names that GGUF files give them.
The patterns are those of the models' own tokenizers.
"""

GPT2, DIGITS = "gpt-2", "digits"
"""As GPT-2 does, and the same with each digit apart."""
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
"""Those that take a piece that is a token as it is, without merging."""
COMPOSED = ("qwen2",)
"""Those that compose letters and their accents first (NFC)."""
