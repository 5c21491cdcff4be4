"""The `tandem` command: start everything, ask for text, look at it; or start one service."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console

import models
from orchestrator.cli import flags, launch, terminal
from protos.errors import TandemError, TransportLost
from protos.service import cores, process
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import orchestrator_pb2_grpc
from protos.transport import rpc, status
from protos.types import MAX_LOGPROBS

ADDRESS = "127.0.0.1:50051"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Speculative decoding as services."
)
console = Console(highlight=False)
Address = Annotated[str, typer.Option(help="of the client API", envvar="TANDEM_ADDRESS")]


@app.command()
def up(
    target: Annotated[Path, typer.Option(help="target: directory or GGUF file")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="drafter: directory or GGUF file")] = models.DRAFT,
    port: Annotated[
        int, typer.Option(help="of the client API, 0 takes a free one", min=0, max=65535)
    ] = 50051,
    workers: Annotated[int, typer.Option(help="round workers", min=1)] = 1,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of the target; by default all cores but one", min=1),
    ] = None,
    ray: Annotated[
        bool, typer.Option(help="round workers as Ray actors, or inside the orchestrator")
    ] = True,
) -> None:
    """Start drafter, verifier and orchestrator on this machine; Ctrl-C stops everything."""
    threads = threads or max(1, cores.usable() - 1)
    plan = launch.Plan(target, draft, port, workers, ray, threads)
    progress = terminal.Progress(console)
    _run(process.until_stopped(launch.run(plan, progress.report, progress.ready)))


@app.command()
@flags.accepting
def generate(
    prompt: Annotated[str, typer.Argument(help="the text to continue")],
    address: Address = ADDRESS,
    json: Annotated[bool, typer.Option("--json", help="print the whole GenerateResponse")] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="likeliest tokens beside each; for --json", min=0, max=MAX_LOGPROBS),
    ] = None,
    **options: Any,
) -> None:
    """Continue a text; accepted draft tokens are coloured."""
    request = api.GenerateRequest(text=prompt, logprobs=logprobs)
    _run(_generate(address, request, options, json))


@app.command("status")
def show_status(
    address: Address = ADDRESS,
    json: Annotated[bool, typer.Option("--json", help="print the whole GetStatusResponse")] = False,
) -> None:
    """What is served and how it is doing."""
    _run(_status(address, json))


async def _generate(
    address: str, request: api.GenerateRequest, options: dict[str, Any], as_json: bool
) -> None:
    flags.fill(request, options)
    async with rpc.connect(address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        if as_json:
            response = await stub.Generate(request)
            print(MessageToJson(response, always_print_fields_with_no_presence=True))
            return
        served = await stub.GetStatus(api.GetStatusRequest())
        tokenizer = terminal.matching_tokenizer(
            models.TARGET, served.models[0].tokenizer_fingerprint
        )
        completion = terminal.Completion(console, tokenizer, request.text)
        async for event in stub.StreamGenerate(api.StreamGenerateRequest(request=request)):
            if event.HasField("chunk"):
                completion.show(event.chunk)
            else:
                completion.summarise(event.complete)


async def _status(address: str, as_json: bool) -> None:
    async with rpc.connect(address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        response = await stub.GetStatus(api.GetStatusRequest())
    if as_json:
        print(MessageToJson(response, always_print_fields_with_no_presence=True))
    else:
        terminal.show_status(console, response)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; what goes wrong is one line and exit code 1."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except grpc.aio.AioRpcError as failure:
        problem = status.decode(failure)
        hint = "; is `tandem up` running?" if isinstance(problem, TransportLost) else ""
        raise SystemExit(f"error: {problem}{hint}") from None
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None


def _pass_on(role: str, module: str) -> None:
    @app.command(role, context_settings=PASS_ON, help=f"Start one {role} (`tandem {role} --help`).")
    def start(context: typer.Context) -> None:
        os.execv(sys.executable, [sys.executable, "-m", module, *context.args])


for _role, _module in (
    ("drafter", "drafter_service"),
    ("verifier", "verifier_service"),
    ("orchestrator", "orchestrator"),
):
    _pass_on(_role, _module)
