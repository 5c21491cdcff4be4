"""Format log-probabilities as in OpenAI's API, and those of a prompt also as in vLLM's API. The
module is pure.
"""

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
    """Return the log-probabilities of a chat's answer in OpenAI's format."""

    def entry(token: int, logprob: float) -> Json:
        text, content = texts.of(token)
        return {"token": text, "logprob": logprob, "bytes": list(content)}

    content = [
        entry(token, each.logprob) | {"top_logprobs": [entry(*pair) for pair in each.top]}
        for token, each in zip(ids, found, strict=True)
        if token not in texts.special  # an end token is not part of the content
    ]
    return {"content": content, "refusal": None}


def of_prompt(texts: TokenTexts, prompt: PromptPart) -> list[Json | None]:
    """Return the log-probabilities of a prompt's tokens in vLLM's format. The entry of each token
    is an object whose keys are token ids. The entry of the first token is None.
    """

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
    """Formats the log-probabilities of a growing completion, and of its prompt if the prompt is
    echoed. Counts characters to compute the offset of each token in the text.
    """

    texts: TokenTexts
    _decoder: codecs.IncrementalDecoder = field(default_factory=UTF_8, init=False)
    _characters: int = field(default=0, init=False)  # number of complete characters so far

    def of(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json:
        """Return the log-probabilities and text offsets of the next tokens of the completion."""
        return self._columns(ids, found) | {"text_offset": self._offsets(ids)}

    def of_prompt(self, prompt: PromptPart, count: int) -> Json:
        """Return the log-probabilities of the prompt's tokens, with the `count` likeliest tokens at
        each position. The first token has no log-probability. Tokens that are not in the prompt's
        text, such as a special token at the beginning, get the offset 0.
        """
        first, *ids = prompt.token_ids
        found = [TokenLogprobs(each.logprob, each.top[:count]) for each in prompt.logprobs]
        columns = self._columns(ids, found)
        offsets = self._offsets(prompt.token_ids)
        before = self._characters - len(prompt.text)
        self._decoder, self._characters = UTF_8(), len(prompt.text)
        return {
            "tokens": [self.texts.name(first), *columns["tokens"]],
            "token_logprobs": [None, *columns["token_logprobs"]],
            "top_logprobs": [None, *columns["top_logprobs"]],
            "text_offset": [max(0, each - before) for each in offsets],
        }

    def _columns(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> Json:
        name = self.texts.name
        return {
            "tokens": [name(token) for token in ids],
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [
                {name(token): logprob for token, logprob in reversed(each.top)} for each in found
            ],
        }

    def _offsets(self, ids: Sequence[int]) -> list[int]:
        """Return the text offset, in characters, at which each of the next tokens begins."""
        offsets = []
        for token in ids:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(self.texts.of(token)[1]))
        return offsets
