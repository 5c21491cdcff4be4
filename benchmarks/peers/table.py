"""A simulated verifier that runs no model, to measure the cost of everything except models. At
fixed intervals each session gets its next tokens, which depend only on the first tokens of its
prompt and on the position.

    python -m tandem.benchmarks.peers.table --tokenizer DIR --step 0.01
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.fingerprint import fingerprint
from tandem.protos.service.process import announce, parent_watched, stop_signals
from tandem.protos.transport import rpc
from tandem.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

HEAD, CONTEXT = 4, 1 << 16
MAX_COMMITS_PER_MESSAGE = 1000


def token_at(head: tuple[int, ...], position: int, vocabulary: int) -> int:
    """Return the token at a position of the simulated text whose first tokens are `head`."""
    return (sum(head) + 7919 * position) % vocabulary


@dataclass(slots=True)
class OpenStream:
    """An open decoding stream: the first tokens of its prompt, its current length in tokens, and
    the length at which it ends.
    """

    head: tuple[int, ...]
    length: int
    until: int
    paused: bool = False


class TableVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """A simulated verifier that runs one step for all sessions every `seconds` seconds. In each
    step a session gets `tokens` tokens.
    """

    def __init__(self, model: common_pb2.ModelDescription, seconds: float, tokens: int) -> None:
        self._model = model
        self._seconds = seconds
        self._tokens = tokens

    async def Decode(
        self, requests: AsyncIterator[verifier_pb2.DecodeRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """Send the commits of every simulated step until the caller ends the call."""
        streams: dict[int, OpenStream] = {}
        sent = 0.0

        async def read() -> None:
            nonlocal sent
            async for request in requests:
                sent = request.sent
                for opening in request.open:
                    tokens = opening.context.tokens
                    head = tuple(tokens[:HEAD])
                    streams[opening.stream] = OpenStream(head, len(tokens), opening.until)
                for flow in request.flows:
                    if stream := streams.get(flow.stream):
                        stream.paused = flow.paused

        reading, clock = asyncio.create_task(read()), asyncio.get_running_loop().time
        try:
            yield verifier_pb2.DecodeResponse(model=self._model)
            tick = int(clock() / self._seconds)
            while not reading.done():
                tick += 1
                await asyncio.sleep(tick * self._seconds - clock())
                commits = [self._step(number, each) for number, each in streams.items()]
                for start in range(0, len(commits) or 1, MAX_COMMITS_PER_MESSAGE):
                    part = commits[start : start + MAX_COMMITS_PER_MESSAGE]
                    some = [commit for commit in part if commit]
                    yield verifier_pb2.DecodeResponse(commits=some, sent=sent)
                for number in [n for n, each in streams.items() if each.length >= each.until]:
                    del streams[number]
        finally:
            reading.cancel()

    async def DescribeVerifier(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Any
    ) -> verifier_pb2.DescribeVerifierResponse:
        """Return the description of the simulated model."""
        return verifier_pb2.DescribeVerifierResponse(model=self._model)

    def _step(self, number: int, stream: OpenStream) -> common_pb2.Commit | None:
        if stream.paused:
            return None
        start = stream.length
        stream.length = min(stream.until, start + self._tokens)
        positions = range(start, stream.length)
        tokens = [token_at(stream.head, each, self._model.vocab_size) for each in positions]
        return common_pb2.Commit(stream=number, start=start, tokens=tokens)


def table_model(tokenizer: Path) -> common_pb2.ModelDescription:
    """Return the description of a simulated model with the tokenizer of a model directory."""
    return common_pb2.ModelDescription(
        name="table",
        tokenizer_fingerprint=fingerprint(tokenizer),
        vocab_size=load_tokenizer(tokenizer).get_vocab_size(),
        context_length=CONTEXT,
        device="cpu",
        exactness="exact",
    )


def main(
    tokenizer: Annotated[Path, typer.Option(help="model directory of the tokenizer")],
    step: Annotated[float, typer.Option(help="seconds between steps")] = 0.01,
    tokens: Annotated[int, typer.Option(help="tokens of a session per step")] = 1,
) -> None:
    """Serve the simulated verifier until the process is told to stop."""
    model = table_model(tokenizer)

    async def serve() -> None:
        stop = stop_signals()
        async with (
            parent_watched(),
            rpc.serving("127.0.0.1", 0, TableVerifier(model, step, tokens)) as address,
        ):
            announce("serving", address=address)
            await stop.get()

    asyncio.run(serve())


if __name__ == "__main__":
    typer.run(main)
