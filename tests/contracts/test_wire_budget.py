"""What a round costs on the wire, measured on real rounds of the embedded pair."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import pytest

from orchestrator.clients import VerifierClient
from orchestrator.generation import Generation
from orchestrator.policy import Policy
from orchestrator.rounds import run_round
from orchestrator.text import load_tokenizer
from protos import codec
from protos.drafting import encode_draft
from protos.sampling import encode_sampling
from protos.tandem.v1 import verifier_pb2
from protos.types import Context, Draft, DraftShape, SamplingParams, Verdict
from tests.conftest import Services

UP, DOWN = 200, 64
NODES = 32


@dataclass
class Scales:
    """A verifier port that weighs the protobuf payloads that pass."""

    client: VerifierClient
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        verdict = await self.client.verify(context, draft, sampling)
        if context.base and len(draft) == NODES:
            request = verifier_pb2.VerifyRequest(
                context=codec.encode_context(context),
                draft=encode_draft(draft),
                sampling=encode_sampling(sampling),
            )
            self.up.append(request.ByteSize())
            self.down.append(codec.encode_verdict(verdict).ByteSize())
        return verdict

    async def close(self, session_id: bytes) -> None:
        await self.client.close(session_id)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_a_round_with_32_nodes_fits_its_budget(
    services: Services, prompts: list[str], temperature: float
) -> None:
    tokenizer, scales = load_tokenizer(services.pair.target), Scales(services.verifier_client)
    for seed, prompt in enumerate(prompts[:6]):
        sampling = SamplingParams(
            temperature, top_k=50 if temperature else 0, seed=2**64 - 1 - seed
        )
        generation = Generation(
            secrets.token_bytes(16), tuple(tokenizer.encode(prompt).ids), sampling, 60
        )
        policy = Policy.of(DraftShape(8, 4, NODES))
        while generation.finish is None:
            await run_round(generation, services.drafter_client, scales, policy)
        await services.drafter_client.close(generation.session_id)
        await scales.close(generation.session_id)
    assert len(scales.up) >= 30
    assert (max(scales.up) <= UP, max(scales.down) <= DOWN) == (True, True), (
        max(scales.up),
        max(scales.down),
    )
