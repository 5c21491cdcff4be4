"""What a round costs on the wire, measured on real rounds of the embedded pair."""

from __future__ import annotations

import secrets

import pytest

from benchmarks.wire import Meter, Traffic
from orchestrator.clients import VerifierClient
from orchestrator.generation import Generation
from orchestrator.policy import Policy
from orchestrator.rounds import run_round
from orchestrator.text import load_tokenizer
from protos import rpc
from protos.types import DraftShape, SamplingParams
from tests.conftest import Services

UP, DOWN = 200, 64
NODES = 32


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_a_round_with_32_nodes_fits_its_budget(
    services: Services, prompts: list[str], temperature: float
) -> None:
    tokenizer, traffic = load_tokenizer(services.pair.target), Traffic("Verify")
    weighed: list[tuple[int, int]] = []
    async with rpc.connect(services.verifier, Meter(traffic)) as channel:
        verifier = VerifierClient(channel)
        for seed, prompt in enumerate(prompts[:6]):
            sampling = SamplingParams(
                temperature, top_k=50 if temperature else 0, seed=2**64 - 1 - seed
            )
            generation = Generation(
                secrets.token_bytes(16), tuple(tokenizer.encode(prompt).ids), sampling, 60
            )
            policy = Policy.of(DraftShape(8, 4, NODES))
            rounds = []
            while generation.finish is None:
                rounds.append(
                    await run_round(generation, services.drafter_client, verifier, policy)
                )
            await services.drafter_client.close(generation.session_id)
            await verifier.close(generation.session_id)
            sizes = zip(rounds, traffic.up, traffic.down, strict=True)
            weighed += [(up, down) for done, up, down in sizes if done.advance.drafted == NODES][1:]
            traffic.clear()
    up, down = map(max, zip(*weighed, strict=True))
    assert len(weighed) >= 30, "the first round of each brings the prompt"
    assert (up <= UP, down <= DOWN) == (True, True), (up, down)
