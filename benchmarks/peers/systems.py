"""The systems that the throughput benchmark compares: transformers' `generate()` and Tandem's
client API.

Each system completes prompts. Decoding is greedy if the temperature is 0. Other modules measure and
compare the speed of the systems.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from grpc import aio
from transformers import AutoModelForCausalLM

from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.transport import rpc, status
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

Prompt = tuple[int, ...]
ALWAYS = ("--draft-cost", "0")  # flags with which a drafter always drafts, regardless of cost


@dataclass(frozen=True, slots=True)
class Completion:
    """The generated tokens and, if the system reports it, the number of verification steps."""

    tokens: tuple[int, ...]
    steps: int = 0


class System(Protocol):
    """A system that completes prompts."""

    async def complete(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        """Return the generated tokens. Generation stops at an end token or after `max_new_tokens`
        tokens.
        """


@dataclass(frozen=True, slots=True)
class Plain:
    """transformers' `generate()`, with its own assisted decoding if a draft model is given."""

    target: Any
    draft: Any = None
    temperature: float = 0.0

    async def complete(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        """Complete a prompt in a worker thread, because the event loop must stay free to keep gRPC
        channels alive.
        """
        return await asyncio.to_thread(self._generate, prompt, max_new_tokens)

    @torch.inference_mode()
    def _generate(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {} if self.draft is None else {"assistant_model": self.draft}
        if self.temperature:
            options |= {"temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        output = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=self.target.config.pad_token_id or 0,
            do_sample=self.temperature > 0,
            max_new_tokens=max_new_tokens,
            **options,
        )
        return Completion(tuple(output[0, len(prompt) :].tolist()))


@dataclass(frozen=True, slots=True)
class Tandem:
    """Tandem's client API. The server chooses the `levels` and `branches` of drafts unless they are
    given. If `levels` is 0, the server decodes without drafts.
    """

    stub: Any
    levels: int | None = None
    branches: int | None = None
    temperature: float = 0.0

    async def complete(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        """Complete a prompt with one unary call. Raises a TandemError if the call fails."""
        request = api.GenerateRequest(
            token_ids=api.TokenIds(ids=prompt),
            sampling=api.Sampling(temperature=self.temperature, seed=0),
            stopping=api.Stopping(max_new_tokens=max_new_tokens),
            speculation=api.Speculation(num_speculative_tokens=self.levels, branches=self.branches),
        )
        try:
            response = await self.stub.Generate(request)
        except aio.AioRpcError as failure:
            raise status.decode(failure) from None
        return Completion(tuple(response.token_ids), response.speculation.num_spec_steps)


def load(folder: Path, dtype: str = "float32") -> Any:
    """Load a model with transformers."""
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True
    )
    return network.eval()


@asynccontextmanager
async def tandem_up(target: Path, draft: Path, ray: bool, *drafter: str) -> AsyncIterator[Any]:
    """Run `tandem up` on a free port inside this context, and pass the flags `drafter` to its
    drafter. Yields a stub of the client API. Raises Unusable.
    """
    plan = Plan(target, draft, port=0, ray=ray, drafter=drafter)
    async with (
        launch.up(plan) as tandem,
        rpc.connect(tandem.addresses["orchestrator"]) as channel,
    ):
        yield orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
