"""A caller of a verifier or a drafter over real gRPC, and the messages that come for each of its
openings.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import Any, TypeVar

from tandem.protos.errors import TandemError
from tandem.protos.streams import Commit, Decoding, Drafting, Proposal
from tandem.protos.tls import Tls
from tandem.protos.transport import rpc, status
from tandem.protos.types import LAST_TURN, Context, DraftShape, SamplingParams
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import decode_proposal, encode_proposal
from tandem.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tandem.v1.common_pb2 import Closing
from tests.waiting import LIMIT

BEAT_SECONDS = 0.3
DRAWN = SamplingParams(temperature=1.0, seed=5)
PROMPT, UNTIL, LONG = (400, 500, 600, 700), 44, 200
BEGIN = len(PROMPT)


Opening = TypeVar("Opening", Decoding, Drafting)


def decoding(
    until: int = UNTIL, sampling: SamplingParams = DRAWN, tokens: Sequence[int] = PROMPT
) -> Decoding:
    """Return an opening of a new session for a verifier."""
    return Decoding(Context(secrets.token_bytes(16), 1, 0, tuple(tokens)), sampling, until)


def drafting(tokens: Sequence[int] = PROMPT, **asked: Any) -> Drafting:
    """Return an opening of a new session for a drafter."""
    settings = {"sampling": SamplingParams(), "shape": DraftShape(12, 4, 32)} | asked
    return Drafting(Context(secrets.token_bytes(16), 1, 0, tuple(tokens)), **settings)


def again(opening: Opening, turn: int = 2, tokens: Sequence[int] = PROMPT) -> Opening:
    """Return another opening of the same session."""
    return replace(opening, context=replace(opening.context, turn=turn, tokens=tuple(tokens)))


def reported(commits: Sequence[Commit], start: int = BEGIN) -> tuple[int, ...]:
    """Return the text after the prompt; fail if commits leave a gap or repeat a token."""
    for one, other in pairwise([Commit(start, ()), *commits]):
        assert other.start == one.start + len(one.tokens)
    return tuple(chain.from_iterable(commit.tokens for commit in commits))


def straight(behind: int, tokens: Sequence[int], **fields: int) -> Proposal:
    """Return a proposal of a chain with high probabilities."""
    size = len(tokens)
    return Proposal(behind, tuple(tokens), tuple(range(size)), (-0.05,) * size, **fields)


@dataclass
class Stream:
    """One opening and its replies: commits or proposals and, at the end, perhaps an error."""

    caller: Caller
    number: int
    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def take(self) -> Any:
        """Return the next reply; raise the error that ended the stream."""
        async with asyncio.timeout(LIMIT):
            item = await self.queue.get()
        if isinstance(item, TandemError):
            raise item
        return item

    async def commits(self, until: int) -> list[Commit]:
        """Return commits up to this many tokens in all."""
        found: list[Commit] = []
        while not found or found[-1].start + len(found[-1].tokens) < until:
            found.append(await self.take())
        return found

    async def silent(self) -> bool:
        """Return whether no reply comes, after all earlier replies are dropped, while another
        session of the call decodes.
        """
        await self.caller.decode_another()
        while not self.queue.empty():
            self.queue.get_nowait()
        await self.caller.decode_another()
        return self.queue.empty()

    async def say(self, proposal: Proposal) -> None:
        """Propose something."""
        await self.caller.send(proposals=[encode_proposal(self.number, proposal)])

    async def tell(self, start: int, tokens: Sequence[int]) -> None:
        """Send the next tokens of the text."""
        await self.caller.send(
            commits=[codec.encode_commit(self.number, Commit(start, tuple(tokens)))]
        )

    async def pause(self, paused: bool) -> None:
        """Ask the service to pause, or to go on."""
        flow = verifier_pb2.Flow(stream=self.number, paused=paused)
        await self.caller.send(flows=[flow])


@dataclass
class Caller:
    """One call, and the class of its messages."""

    call: Any
    message: Any
    numbers: Any = field(default_factory=lambda: count(1))
    streams: dict[int, Stream] = field(default_factory=dict)
    sessions: dict[bytes, int] = field(default_factory=dict)  # the sessions and their newest turns
    echoes: list[float] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(
        self,
        *openings: Decoding | Drafting,
        proposals: Sequence[Proposal] = (),
        paused: bool = False,
    ) -> Any:
        """Open one stream, or a list of them, in one message with proposals for each."""
        messages: list[Any] = []
        for opening in openings:
            stream = Stream(self, next(self.numbers))
            self.streams[stream.number] = stream
            name, turn = opening.context.session_id, opening.context.turn
            self.sessions[name] = max(turn, self.sessions.get(name, 0))
            if isinstance(opening, Drafting):
                messages.append(codec.encode_drafting(stream.number, opening))
            else:
                messages.append(codec.encode_decoding(stream.number, opening))
        opened = [self.streams[each.stream] for each in messages]
        fields: dict[str, list[Any]] = {}
        if proposals:
            fields["proposals"] = [
                encode_proposal(o.number, proposal) for o in opened for proposal in proposals
            ]
        if paused:
            fields["flows"] = [verifier_pb2.Flow(stream=o.number, paused=True) for o in opened]
        await self.send(open=messages, **fields)
        return opened if len(opened) > 1 else opened[0]

    async def send(self, **fields: Any) -> None:
        """One message."""
        async with self.lock:
            await self.call.write(self.message(**fields))

    async def decode_another(self) -> None:
        """Have another session decoded, in steps that it shares with all sessions that have
        work.
        """
        opening = decoding(BEGIN + 8)
        await (await self.open(opening)).commits(opening.until)
        await self.close(opening)

    async def read(self) -> None:
        try:
            async for response in self.call:
                self.echoes.append(response.sent)
                if self.message is drafter_pb2.ProposeRequest:
                    for proposal in response.proposals:
                        self._give(proposal.stream, decode_proposal(proposal))
                else:
                    for commit in response.commits:
                        self._give(commit.stream, codec.decode_commit(commit))
                for failure in response.failures:
                    self._give(failure.stream, status.unpack(failure.status))
        finally:
            self.ended.set()

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.send(sent=1.0)

    async def close(self, *openings: Decoding | Drafting) -> None:
        """Close the sessions of these streams, or all sessions of this caller."""
        names = [opening.context.session_id for opening in openings] or list(self.sessions)
        closings = [
            Closing(session_id=name, turn=self.sessions.get(name, LAST_TURN)) for name in names
        ]
        await self.send(closings=closings)

    async def leave(self) -> None:
        """Close all sessions, and wait until the service has read everything."""
        await self.close()
        await self.call.done_writing()
        await self.ended.wait()

    def _give(self, number: int, item: Any) -> None:
        self.streams[number].queue.put_nowait(item)


@asynccontextmanager
async def calling(
    address: str, lost: bool = False, tls: Tls | None = None, drafter: bool = False
) -> AsyncIterator[Caller]:
    """Yield a caller; at the end of the scope it leaves, or its connection is `lost`."""
    async with rpc.connect(address, tls, "verifier") as channel:
        if drafter:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Propose()
        else:
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode()
        caller = Caller(call, drafter_pb2.ProposeRequest if drafter else verifier_pb2.DecodeRequest)
        tasks = [asyncio.create_task(caller.read()), asyncio.create_task(caller.beat())]
        try:
            yield caller
        finally:
            # a task that is cancelled during a write cancels the whole call
            async with caller.lock:
                for task in tasks[1:]:
                    task.cancel()
            if not (lost or caller.ended.is_set()):
                await caller.leave()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
