"""Verifiers that compute the same model in two ways: a stream keeps to one of them while it can,
and says so when it could not.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from tandem import AsyncClient
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.transport import rpc
from tandem.verifier_service import service as verifier_service
from tests.conftest import Pair

TOKENS = 200


async def client_of(scope: AsyncExitStack, target: Path, *verifiers: str) -> AsyncClient:
    """A client of a front end that has these verifiers, and no drafter."""
    config = OrchestratorConfig(verifier=",".join(verifiers), tokenizer=target, port=0, ray=False)
    address = await scope.enter_async_context(server.serving(config, CollectorRegistry()))
    return await scope.enter_async_context(AsyncClient(address))


async def test_a_stream_that_goes_on_with_another_arithmetic_says_so(embedded: Pair) -> None:
    async with AsyncExitStack() as scope:
        verifiers: dict[str, tuple[AsyncExitStack, VerifierClient]] = {}
        for dtype in ("float32", "bfloat16"):
            own = await scope.enter_async_context(AsyncExitStack())
            config = ModelServiceConfig(model=embedded.target, threads=1, dtype=dtype)
            serving = verifier_service.serving(config, CollectorRegistry())
            where = await own.enter_async_context(serving)
            channel = await scope.enter_async_context(rpc.connect(where))
            verifiers[where] = own, VerifierClient(channel)
        described = [await client.describe(5) for _, client in verifiers.values()]
        assert len({each.fingerprint for each in described}) == 2
        assert len({each.weights_fingerprint for each in described} - {""}) == 1
        client = await client_of(scope, embedded.target, *verifiers)
        stream = client.stream("Once", max_new_tokens=TOKENS, ignore_eos=True)
        async with stream as chunks:
            await anext(aiter(chunks))
            for own, verifier in verifiers.values():
                if (await verifier.describe(5)).sessions:
                    await own.aclose()
                    break
            async for _ in chunks:
                pass
        assert stream.response and stream.response.usage.completion_tokens == TOKENS
        summary = stream.response.speculation
        assert (summary.verifier_switches, summary.verifier_group_changes) == (1, 1)
        whole = await client.generate("Once", max_new_tokens=20)
        assert whole.speculation.verifier_group_changes == 0
