"""Log-probabilities in OpenAI's shapes, and in vLLM's those of prompts. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.requests.answer import PromptPart
from tandem.protos.types import TokenLogprobs

Json: TypeAlias = dict[str, Any]
UTF_8 = partial(codecs.getincrementaldecoder("utf-8"), "replace")


def of_chat(texts: TokenTexts, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json:
    """Those of a chat's tokens."""

    def entry(token: int, logprob: float) -> Json:
        text, content = texts.of(token)
        return {"token": text, "logprob": logprob, "bytes": list(content)}

    content = [
        entry(token, each.logprob) | {"top_logprobs": [entry(*pair) for pair in each.top]}
        for token, each in zip(ids, found, strict=True)
        if token not in texts.special  # the end, which is no part of the content
    ]
    return {"content": content, "refusal": None}


def of_prompt(texts: TokenTexts, prompt: PromptPart) -> list[Json | None]:
    """Those of a prompt's tokens, by their numbers; the first has none."""

    def entry(token: int, logprob: float, rank: int) -> tuple[str, Json]:
        found = {"logprob": logprob, "rank": rank, "decoded_token": texts.of(token)[0]}
        return str(token), found

    entries: list[Json | None] = [None]
    for token, each in zip(prompt.token_ids[1:], prompt.logprobs, strict=True):
        likeliest = [entry(*pair, rank) for rank, pair in enumerate(each.top, 1)]
        entries.append(dict([entry(token, each.logprob, each.rank), *likeliest]))
    return entries


@dataclass
class CompletionLogprobs:
    """Those of a completion as it grows, and of its prompt, if that comes first."""

    texts: TokenTexts
    _decoder: codecs.IncrementalDecoder = field(default_factory=UTF_8, init=False)
    _characters: int = field(default=0, init=False)  # of the tokens so far, whole ones

    def of(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json:
        """Those of tokens that come next."""
        return self._told(ids, found) | {"text_offset": self._offsets(ids)}

    def of_prompt(self, prompt: PromptPart, count: int) -> Json:
        """Those of the prompt, whose first token has none, with the `count` likeliest beside each.
        Tokens that are not in its text, as one that begins every text, are before it.
        """
        first, *ids = prompt.token_ids
        told = self._told(ids, [TokenLogprobs(p.logprob, p.top[:count]) for p in prompt.logprobs])
        offsets = self._offsets(prompt.token_ids)
        before = self._characters - len(prompt.text)
        self._decoder, self._characters = UTF_8(), len(prompt.text)
        return {
            "tokens": [self.texts.name(first), *told["tokens"]],
            "token_logprobs": [None, *told["token_logprobs"]],
            "top_logprobs": [None, *told["top_logprobs"]],
            "text_offset": [max(0, each - before) for each in offsets],
        }

    def _told(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json:
        name = self.texts.name
        return {
            "tokens": [name(token) for token in ids],
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [
                {name(token): logprob for token, logprob in reversed(each.top)} for each in found
            ],
        }

    def _offsets(self, ids: Sequence[int]) -> list[int]:
        """Where tokens that come next begin, in characters."""
        offsets = []
        for token in ids:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(self.texts.of(token)[1]))
        return offsets
