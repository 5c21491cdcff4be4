"""An orchestrator uses drafters that register if it has a token for them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from tandem.engine.config import ModelServiceConfig
from tandem.models import DRAFT, TARGET
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.drain import Drain
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.served import Services
from tests.services.registering import SECRET, Front, really_drafting, registering
from tests.system.test_same_text import ask
from tests.waiting import until


def orchestrator(services: Services, **settings: Any) -> Any:
    """Run an orchestrator without drafters of its own."""
    config = OrchestratorConfig(
        verifier=services.verifier, tokenizer=TARGET, port=0, ray=False, **settings
    )
    return server.serving(config, CollectorRegistry(), Drain(30.0))


@pytest.mark.usefixtures("waited_for")
async def test_an_orchestrator_uses_a_drafter_as_long_as_it_is_registered(
    services: Services,
) -> None:
    request = ask("Once upon a time there was", tokens=40)
    request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
    async with (
        orchestrator(services, registration_token=SECRET) as address,
        rpc.connect(address) as channel,
    ):
        stub: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

        async def drafters() -> list[Any]:
            return list((await stub.GetStatus(api.GetStatusRequest())).models[0].drafters)

        async def gone() -> bool:
            return not await drafters()

        async def drafted() -> api.GenerateResponse | None:
            """Return an answer with drafts, which shows that the drafter was reached."""
            answer: api.GenerateResponse = await stub.Generate(request)
            return answer if answer.speculation.num_draft_tokens else None

        async with really_drafting(Front(address), register_name="phone"):
            (found,) = await until(drafters)
            assert (found.address.partition("@")[0], found.serving) == ("phone", True)
            await until(drafted)
            answer = await stub.Generate(request)
            assert answer.speculation.num_steps_with_guesses == answer.speculation.num_spec_steps
            assert answer.speculation.num_accepted_draft_tokens > 0
        await until(gone)
        plain = await stub.Generate(request)
    assert plain.speculation.num_draft_tokens == 0
    assert answer.text == plain.text


async def test_an_orchestrator_without_a_token_takes_no_registration(services: Services) -> None:
    async with (
        orchestrator(services) as address,
        registering(Front(address)) as call,
    ):
        with pytest.raises(Exception, match="UNIMPLEMENTED"):
            await call.read()


@pytest.mark.parametrize("token", ["short", "with a space in it", "ä" * 20, "x" * 257])
def test_a_token_that_could_be_proposed_or_not_sent_is_refused(token: str) -> None:
    with pytest.raises(ValidationError, match="needs 16 to 256 ASCII characters"):
        ModelServiceConfig(model=DRAFT, register_at="h:1", register_token=token)
    with pytest.raises(ValidationError, match="register_at needs register_token"):
        ModelServiceConfig(model=DRAFT, register_at="h:1")
    with pytest.raises(ValidationError, match="register_token would be sent to h:1 in the clear"):
        ModelServiceConfig(model=DRAFT, register_at="127.0.0.1:1,h:1", register_token=SECRET)
    assert SECRET not in repr(ModelServiceConfig(model=DRAFT, register_token=SECRET))
