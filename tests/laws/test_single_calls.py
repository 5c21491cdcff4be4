"""Single calls to a drafter or a verifier, which may take longer than a service waits for a silent
caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tandem.orchestrator.fleet import clients
from tandem.protos.errors import Internal
from tandem.v1 import common_pb2, verifier_pb2

COMMIT = verifier_pb2.DecodeResponse(commits=[common_pb2.Commit(start=1)])
HEARTBEAT = verifier_pb2.DecodeResponse()


class Service:
    """A service that records its responses and the caller's messages, in order."""

    def __init__(self, *responses: verifier_pb2.DecodeResponse) -> None:
        self.events: list[str] = []
        self._responses: Sequence[verifier_pb2.DecodeResponse] = responses

    def __call__(self, **_: Any) -> Service:
        return self

    async def __aiter__(self) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        for response in self._responses:
            self.events.append("commit" if response.commits else "heartbeat")
            yield response

    async def write(self, request: verifier_pb2.DecodeRequest) -> None:
        self.events.append("opening" if request.open else "answer")

    async def done_writing(self) -> None:
        self.events.append("end")

    def cancel(self) -> None:
        pass


async def ask(service: Service) -> Any:
    request = verifier_pb2.DecodeRequest(open=[verifier_pb2.Decoding(stream=1)])
    return await clients._ask(service, request, 60.0, "commits")


async def test_a_caller_that_waits_answers_every_heartbeat() -> None:
    service = Service(HEARTBEAT, HEARTBEAT, COMMIT, HEARTBEAT)
    assert (await ask(service)).start == 1
    waiting = ["opening", *["heartbeat", "answer"] * 2]
    assert service.events == [*waiting, "commit", "end", "heartbeat"]


async def test_a_service_that_ends_a_call_without_a_word_is_an_error() -> None:
    with pytest.raises(Internal):
        await ask(Service(HEARTBEAT))
