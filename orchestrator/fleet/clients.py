"""Clients that make single calls to a drafter or a verifier, for examples, benchmarks and tests.
Each call is a stream with one opening. The system itself uses a `link` to each service instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structlog.contextvars import get_contextvars

from tandem.orchestrator.fleet.probes import DrafterProbe, VerifierProbe, answer_of
from tandem.protos import tree
from tandem.protos.errors import Internal
from tandem.protos.streams import Commit, Decoding, Drafting
from tandem.protos.transport import rpc, status
from tandem.protos.types import (
    LAST_TURN,
    Context,
    Draft,
    DraftShape,
    ProposeResult,
    SamplingParams,
    Verdict,
)
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import decode_proposal, draft_of, encode_proposal, proposal_of
from tandem.v1 import common_pb2, drafter_pb2, verifier_pb2

PROPOSE_SECONDS = 5.0
VERIFY_SECONDS = 60.0
CLOSE_SECONDS = 2.0
STREAM = 1


async def _ask(start: Callable[..., Any], request: Any, seconds: float, field: str) -> Any:
    """Send one message and return the first item that comes back. Raises a TandemError.

    A service ends the call of a silent caller, so this function answers each heartbeat of the
    service.
    """

    async def first() -> Any:
        await call.write(request)
        item = None
        async for response in call:
            for failure in response.failures:
                raise status.unpack(failure.status)
            if item is None and (found := getattr(response, field)):
                item = found[0]
                await call.done_writing()
            elif item is None and not response.last:
                await call.write(type(request)())
        return item

    request_id = str(get_contextvars().get("request_id", ""))
    call = start(timeout=seconds, metadata=tuple(rpc.metadata_of(request_id)))
    try:
        return await answer_of(first())
    finally:
        call.cancel()


async def _close(start: Callable[..., Any], request: Any) -> None:
    """Send one message and wait until the service has ended the call."""

    async def whole() -> bool:
        await call.write(request)
        await call.done_writing()
        async for _ in call:
            pass
        return True

    call = start(timeout=CLOSE_SECONDS)
    await answer_of(whole())


def _closing(session_id: bytes) -> common_pb2.Closing:
    return common_pb2.Closing(session_id=session_id, turn=LAST_TURN)


class DrafterClient(DrafterProbe):
    """A client of one drafter."""

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> ProposeResult:
        """Ask the drafter for one draft for the context, and return the draft."""
        opening = Drafting(context, sampling, shape, lockstep=True, once=True)
        request = drafter_pb2.ProposeRequest(open=[codec.encode_drafting(STREAM, opening)])
        message = await _ask(self._stub.Propose, request, PROPOSE_SECONDS, "proposals")
        proposal = decode_proposal(message)
        return ProposeResult(draft_of(proposal), proposal.cached_len, proposal.epoch)

    async def close(self, session_id: bytes) -> None:
        """Tell the service to free the session."""
        await _close(
            self._stub.Propose, drafter_pb2.ProposeRequest(closings=[_closing(session_id)])
        )


class VerifierClient(VerifierProbe):
    """A client of one verifier."""

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        """Have the verifier verify a draft, and return the accepted nodes and the next token."""
        levels = max(tree.depths(draft.parents), default=-1) + 1
        until = context.length + levels + 1
        opening = Decoding(context, sampling, until, lockstep=True, once=True)
        request = verifier_pb2.DecodeRequest(
            open=[codec.encode_decoding(STREAM, opening)],
            proposals=[encode_proposal(STREAM, proposal_of(draft, context.length))],
        )
        message = await _ask(self._stub.Decode, request, VERIFY_SECONDS, "commits")
        return verdict_of(draft, codec.decode_commit(message))

    async def close(self, session_id: bytes) -> None:
        """Tell the service to free the session."""
        await _close(self._stub.Decode, verifier_pb2.DecodeRequest(closings=[_closing(session_id)]))


def verdict_of(draft: Draft, commit: Commit) -> Verdict:
    """Return which nodes of a draft a commit accepted. Raises Internal if the draft does not
    contain the accepted tokens.
    """
    *path, next_token = commit.tokens
    accepted: list[int] = []
    children = tree.children(draft.parents)
    for token in path:
        siblings = children[accepted[-1] + 1 if accepted else 0]
        node = next((each for each in siblings if draft.tokens[each] == token), None)
        if node is None:
            raise Internal("the verifier accepted a token that was not drafted")
        accepted.append(node)
    held = commit.start + len(path)
    return Verdict(tuple(accepted), next_token, held, commit.epoch, commit.reused, commit.logprobs)
