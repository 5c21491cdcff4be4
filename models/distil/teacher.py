"""Send many prompts at once to a served target, and collect its answers and the likeliest tokens at
each position of an answer.

This module uses only the client API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import numpy as np

from tandem.client import AsyncClient
from tandem.models.distil.prompts import Prompt
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import MAX_LOGPROBS
from tandem.v1 import orchestrator_pb2 as api

TOP = MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class Answer:
    """A `prompt`, int32 [prompt], and the `tokens` of the target's answer, int32 [answer]. `top`,
    int32 [answer, TOP], has the target's likeliest tokens at each position of the answer.
    `logprobs`, float32 [answer, TOP], has the log-probabilities of the tokens in `top` at
    temperature 1.
    """

    prompt: np.ndarray
    tokens: np.ndarray
    top: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, its index, and the sampling temperature of its answer."""

    number: int
    prompt: Prompt
    temperature: float


class Teacher:
    """Asks a served target questions, at most `at_once` of them concurrently."""

    def __init__(self, client: AsyncClient, max_new_tokens: int, at_once: int) -> None:
        self._client = client
        self._max_new_tokens = max_new_tokens
        self._at_once = at_once
        self._chats = True  # false once the target has turned out to have no chat template

    async def answers(self, questions: Iterable[Question]) -> AsyncIterator[tuple[int, Answer]]:
        """Yield the index of each question with the answer, in the order in which the answers
        arrive. Raises TandemError.
        """
        waiting, running = iter(questions), set[asyncio.Task[tuple[int, Answer]]]()
        try:
            while True:
                while len(running) < self._at_once and (question := next(waiting, None)):
                    running.add(asyncio.create_task(self._answer(question)))
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    running.remove(task)
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _answer(self, question: Question) -> tuple[int, Answer]:
        if self._chats and not isinstance(question.prompt, str):
            try:
                return question.number, await self._ask(question, question.prompt)
            except InvalidRequest as error:
                if "chat template" not in str(error):
                    raise
                self._chats = False  # send only plain texts from now on
        prompt = question.prompt
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return question.number, await self._ask(question, text)

    async def _ask(self, question: Question, prompt: Prompt) -> Answer:
        response = await self._client.generate(
            prompt,
            temperature=question.temperature,
            seed=question.number,
            max_new_tokens=self._max_new_tokens,
            logprobs=TOP,
            return_token_ids=True,
        )
        return answer_of(response)


def answer_of(response: api.GenerateResponse) -> Answer:
    """Convert a response of the client API to an Answer. Where the response lists fewer than TOP
    tokens, because the vocabulary is small, the remaining log-probabilities are -inf.
    """
    size = len(response.token_ids)
    top = np.zeros((size, TOP), np.int32)
    logprobs = np.full((size, TOP), -np.inf, np.float32)
    for place, each in enumerate(response.logprobs):
        top[place, : len(each.top_ids)] = each.top_ids
        logprobs[place, : len(each.top_logprobs)] = each.top_logprobs
    prompt = np.array(response.prompt_token_ids, np.int32)
    return Answer(prompt, np.array(response.token_ids, np.int32), top, logprobs)
