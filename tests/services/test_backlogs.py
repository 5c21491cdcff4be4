"""What waits for a caller that was slow: it leaves in messages that are not too large."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import hosting
from tandem.engine.schedule.job_stream import BACKLOG
from tandem.engine.streams import Call
from tandem.protos.streams import Fact, Guess
from tandem.protos.transport.rpc import MAX_MESSAGE_BYTES
from tandem.protos.types import MAX_LOGPROBS, MAX_NODES, TokenLogprobs
from tandem.v1.common_pb2 import Failure
from tandem.verifier_service.service import VerifierService
from tests.conftest import Pair

LARGE = 1 << 20  # of a token's id


async def test_no_message_is_above_the_limit_however_many_facts_wait(embedded: Pair) -> None:
    top = tuple((LARGE + place, -0.1) for place in range(MAX_LOGPROBS))
    size = MAX_NODES + 1
    fact = Fact(
        1, (LARGE,) * size, MAX_NODES, MAX_NODES, logprobs=(TokenLogprobs(-0.1, top),) * size
    )
    config = ModelServiceConfig(model=embedded.target)
    async with hosting(config, "verify", True, CollectorRegistry()) as host:
        service, caller = VerifierService(host), Call[Guess, Fact]()
        caller.outgoing.extend((stream, fact) for stream in range(BACKLOG))
        caller.failures.append(Failure(stream=BACKLOG))
        sent = list[int]()
        while caller.outgoing:
            caller.changed.clear()
            response = service._respond(caller)
            assert response.ByteSize() < MAX_MESSAGE_BYTES
            assert caller.changed.is_set() == bool(caller.outgoing), "the rest follows at once"
            assert bool(response.failures) != bool(caller.outgoing), "what failed says it last"
            sent += [each.stream for each in response.facts]
    assert sent == list(range(BACKLOG))
