"""The trace of one request, from the calling program to both models, in a collector."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from opentelemetry.sdk.trace import TracerProvider

from tandem import AsyncClient
from tandem.benchmarks.peers.checkout import HERE, address, child
from tests.served import Pair
from tests.services.collector import Collector, collecting

pytestmark = pytest.mark.long("starts eight processes, one of them a Ray")

PROMPT, TOKENS = "Once upon a time there was a canary", 200


async def traced(pair: Pair, collector: Collector, ray: bool) -> tuple[str, str, int]:
    """Send a request to a system of three processes, or to one with its cell on Ray Serve, and stop
    it; return the caller's trace and span ids, and the number of steps of the answer.
    """
    async with AsyncExitStack() as scope:
        flags = ("--otlp-endpoint", collector.endpoint)
        models = {"verifier": pair.target, "drafter": pair.draft}
        # makes every step draft, however fast the target is
        always = ("--threads", "1", "--draft-cost", "0")
        processes = {
            role: await scope.enter_async_context(
                child(HERE, f"{role}_service", "--model", str(model), *always, *flags)
            )
            for role, model in models.items()
        }
        where = [f"--{role}={await address(process)}" for role, process in processes.items()]
        tokenizer = ("--tokenizer", str(pair.target), "--port", "0")
        front = await scope.enter_async_context(
            child(HERE, "orchestrator", *where, *tokenizer, "--ray" if ray else "--no-ray", *flags)
        )
        client = await scope.enter_async_context(AsyncClient(await address(front)))
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("the program that asks")
        with tracer.start_as_current_span("ask") as span:
            answer = await client.generate(
                PROMPT, temperature=0.0, max_new_tokens=TOKENS, ignore_eos=True
            )
        own = span.get_span_context()
        for process in (front, *processes.values()):
            process.terminate()
            assert await process.wait() == 0
    return f"{own.trace_id:032x}", f"{own.span_id:016x}", answer.speculation.num_spec_steps


@pytest.mark.parametrize("ray", [False, True], ids=["in-process", "on-ray"])
async def test_a_request_is_one_trace_with_spans_of_all_services(embedded: Pair, ray: bool) -> None:
    async with collecting() as collector:
        trace, asking, steps = await traced(embedded, collector, ray)
    spans = collector.spans
    assert {each.trace for each in spans} == {trace}
    made = {(each.service.removeprefix("tandem-"), each.name) for each in spans}
    assert made == {
        *(("orchestrator", name) for name in ("generate", "wait", "decode", "relay", "round")),
        *(("verifier", name) for name in ("verify", "step")),
        *(("drafter", name) for name in ("draft", "proposal")),
    }
    names = {each.own: each.name for each in spans} | {asking: "ask"}
    below = {each.name: names[each.parent] for each in spans}
    assert below == {
        "generate": "ask",
        "wait": "generate",
        "decode": "generate",
        "relay": "generate",
        "round": "relay",
        "verify": "relay",
        "draft": "relay",
        "step": "verify",
        "proposal": "draft",
    }
    assert [each.name for each in spans].count("round") == steps
    assert sum(each.attributes["tokens"] for each in spans if each.name == "round") == TOKENS
    assert "canary" not in repr(spans)
