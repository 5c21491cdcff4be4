"""What the `tandem` command asks of a running orchestrator, and prints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson

from tandem import models
from tandem.orchestrator.cli import flags, terminal
from tandem.protos.errors import TransportLost
from tandem.protos.transport import rpc, status
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc


@asynccontextmanager
async def orchestrator(
    address: str,
) -> AsyncIterator[Any]:
    """The client API at an address while the scope lasts; a failed call raises the error that it is
    for.
    """
    try:
        async with rpc.connect(address) as channel:
            yield orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
    except grpc.aio.AioRpcError as failure:
        problem = status.decode(failure)
        if isinstance(problem, TransportLost):
            raise TransportLost(f"nobody answers at {address}: {problem}") from None
        raise problem from None


async def generate(
    address: str, request: api.GenerateRequest, options: dict[str, Any], as_json: bool
) -> int:
    """Print a completion as it grows, or the whole response as JSON."""
    flags.fill(request, options)
    async with orchestrator(address) as stub:
        if as_json:
            response = await stub.Generate(request)
            print(MessageToJson(response, always_print_fields_with_no_presence=True))
            return 0
        served = await stub.GetStatus(api.GetStatusRequest())
        tokenizer = terminal.matching_tokenizer(
            models.TARGET, served.models[0].tokenizer_fingerprint
        )
        completion = terminal.Completion(terminal.console(), tokenizer, request.text)
        async for event in stub.StreamGenerate(api.StreamGenerateRequest(request=request)):
            if event.HasField("chunk"):
                completion.show(event.chunk)
            else:
                completion.summarise(event.complete)
    return 0


async def show_status(address: str, as_json: bool) -> int:
    """Print what is served; the exit code is 1 if a request cannot be."""
    async with orchestrator(address) as stub:
        response = await stub.GetStatus(api.GetStatusRequest())
    if as_json:
        print(MessageToJson(response, always_print_fields_with_no_presence=True))
    else:
        terminal.show_status(response)
    serving = (any(each.serving for each in model.verifiers) for model in response.models)
    return 0 if all(serving) else 1
