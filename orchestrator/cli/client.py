"""The subcommands of `tandem` that query a running orchestrator and print its answers."""

from __future__ import annotations

import sys
from typing import Any

from google.protobuf.json_format import MessageToJson

from tandem import AsyncClient, models
from tandem.orchestrator.cli import flags, status_view, terminal, top
from tandem.orchestrator.cli.flags import FrontEnd
from tandem.protos.errors import TransportLost
from tandem.v1 import orchestrator_pb2 as api


async def generate(
    front_end: FrontEnd,
    prompt: str,
    logprobs: int | None,
    options: dict[str, Any],
    as_json: bool,
) -> int:
    """Print a completion while it is generated. Then print to standard error why the completion
    ended. With `as_json`, print only the whole response, as JSON. Returns exit code 0.
    """
    given, prompt = flags.given(options), flags.prompt(prompt)
    async with front_end.connect() as client:
        served = await _status(client, front_end.address)
        async with client.stream(prompt, logprobs=logprobs, **given) as stream:
            if as_json:
                async for _ in stream:
                    pass
                _print_json(stream.response)
                return 0
            wanted = served.models[0].tokenizer_fingerprint
            tokenizer = terminal.matching_tokenizer(models.TARGET, wanted)
            completion = terminal.Completion(terminal.console(), tokenizer, prompt)
            async for chunk in stream:
                completion.show(chunk)
            assert stream.response is not None, "a stream that ends without a response raises"
            completion.summarise(stream.response)
            print(f"ended: {terminal.ended(stream.response)}", file=sys.stderr)
    return 0


async def show_status(front_end: FrontEnd, as_json: bool) -> int:
    """Print the status of a front end. Returns exit code 1 if no request can be served, otherwise
    0.
    """
    async with front_end.connect() as client:
        response = await _status(client, front_end.address)
    if as_json:
        _print_json(response)
    else:
        status_view.show_status(response)
    return 0 if status_view.is_serving(response) else 1


async def show_top(front_end: FrontEnd, every: float, once: bool) -> int:
    """Show the status of a front end every `every` seconds, or only once. Returns exit code 1 if
    `once` is set and no request can be served, otherwise 0.
    """
    try:
        return await top.show(front_end, every, once, terminal.console())
    except TransportLost as lost:
        raise TransportLost(f"nobody answers at {front_end.address}: {lost}") from None


async def _status(client: AsyncClient, address: str) -> api.GetStatusResponse:
    try:
        return await client.status()
    except TransportLost as lost:
        raise TransportLost(f"nobody answers at {address}: {lost}") from None


def _print_json(message: Any) -> None:
    print(MessageToJson(message, always_print_fields_with_no_presence=True))
