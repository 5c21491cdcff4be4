"""Answer `/tokenize` with the tokens of a prompt, and `/detokenize` with the text of tokens. Both
endpoints use the tokenizer of the served model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tokenizers import Tokenizer

from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.http.bodies.decoding import renamed
from tandem.orchestrator.http.bodies.tokens import DetokenizeBody, Tokenized
from tandem.orchestrator.http.logprobs import Json
from tandem.orchestrator.requests.checks import model_problems
from tandem.orchestrator.requests.request import Request
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import ModelDescription


@dataclass(frozen=True, slots=True)
class TokenizerApi:
    """Answers requests to `/tokenize` and `/detokenize` for one model. All methods raise
    InvalidRequest if a body names a model that is not served.
    """

    answers: Answers
    tokenizer: Tokenizer
    model: ModelDescription

    async def of_prompt(self, asked: Tokenized, request: Request) -> Json:
        """Return the token ids of a prompt and the number of tokens. If requested, also return each
        token's string in the vocabulary. `request` contains the prompt and its owner. Raises Busy
        if too many requests run or wait.
        """
        self._check(asked.body.model)
        try:
            ids = await self.answers.tokens_of(request, asked.special)
        except InvalidRequest as error:
            raise renamed(error, asked.body) from None
        return {
            "count": len(ids),
            "max_model_len": self.model.context_length,
            "tokens": ids,
            "token_strs": [*map(self.tokenizer.id_to_token, ids)] if asked.with_texts else None,
        }

    async def to_prompt(self, asked: DetokenizeBody) -> Json:
        """Return the text of the given token ids, including special tokens."""
        self._check(asked.model)
        if above := [token for token in asked.tokens if token >= self.model.vocab_size]:
            last = self.model.vocab_size - 1
            raise InvalidRequest.of(
                "tokens", f"has {above[0]}, above the vocabulary's last token, {last}"
            )
        (text,) = await asyncio.to_thread(
            self.tokenizer.decode_batch, [asked.tokens], skip_special_tokens=False
        )
        return {"prompt": text}

    def _check(self, model: str | None) -> None:
        if problems := tuple(model_problems(model or "", self.model)):
            raise InvalidRequest(*problems)
