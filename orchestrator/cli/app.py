"""The `tandem` command: start all services or one of them, generate text, and show the status.

Modules that are slow to import are imported only after the arguments have been validated.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.orchestrator.cli import flags
from tandem.orchestrator.cli.flags import FrontEnd, connecting
from tandem.protos.errors import TandemError, TransportLost
from tandem.protos.types import MAX_LOGPROBS

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Speculative decoding as services.",
    rich_markup_mode=None,  # Rich's help tables would truncate long names
)
bench = typer.Typer(no_args_is_help=True, help="Measure a running server.", rich_markup_mode=None)
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tandem {version('tandem-serving')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Speculative decoding as services."""


PORT = typer.Option(help="port of the client API (50051); 0 picks a free one", min=0, max=65535)
HTTP = "port of the HTTP API; 0 picks a free one; default: 8000 if it is free, or 0 if --port is 0"
HTTP_PORT = typer.Option(help=HTTP, min=0, max=65535)
CELLS = typer.Option(help="number of processes that answer requests (default: 1)", min=1)
SHARE_PORTS = typer.Option(help="all cells share one port; by default, each cell has its own port")
THREADS = typer.Option(
    help="CPU threads of the target model; default: cores of one NUMA node, minus one", min=1
)
RAY = "run the cells on Ray Serve (default); --no-ray runs one cell as a plain process"
RAY_ADDRESS = "address of the Ray cluster that runs the cells; by default a private Ray is started"


@app.command()
def up(
    target: Annotated[
        Path | None, typer.Option(help="target model: directory, GGUF file or name on the hub")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="draft model, given like --target; `none` means no drafts")
    ] = None,
    port: Annotated[int | None, PORT] = None,
    http_port: Annotated[int | None, HTTP_PORT] = None,
    cells: Annotated[int | None, CELLS] = None,
    share_ports: Annotated[bool | None, SHARE_PORTS] = None,
    threads: Annotated[int | None, THREADS] = None,
    ray: Annotated[bool | None, typer.Option("--ray/--no-ray", help=RAY)] = None,
    ray_address: Annotated[str | None, typer.Option(help=RAY_ADDRESS)] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with a section for each service", envvar="TANDEM_CONFIG"),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="encrypt all connections, with this user's own CA")
    ] = False,
) -> None:
    """Start drafter, verifier and orchestrator on this machine; Ctrl-C stops everything.

    Other settings of the services can be given in the environment or in the --config file.
    """

    from tandem.orchestrator.cli import certificates, launch, terminal
    from tandem.orchestrator.cli.plan import Plan
    from tandem.protos.service import process

    with _one_line():
        own = certificates.own() if tls else None
        plan = Plan(
            target,
            draft,
            port,
            cells,
            ray,
            threads,
            ray_address,
            config=config,
            certificates=own,
            http_port=http_port,
            share_ports=share_ports,
        )
        plan.fetch()
    asking = certificates.flags(own, certificates.CLIENT) if own else []
    progress = terminal.StartProgress(terminal.console(), asking)
    _run(process.until_stopped(launch.run(plan, progress.report, progress.ready)))


@app.command()
@flags.accepting(flags.MAX_NEW_TOKENS)
@connecting
def generate(
    prompt: Annotated[
        str, typer.Argument(help="text to continue; @FILE reads a file, - reads standard input")
    ],
    front_end: FrontEnd,
    json: Annotated[bool, typer.Option("--json", help="print the whole GenerateResponse")] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="alternatives reported per token (with --json)", min=0, max=MAX_LOGPROBS),
    ] = None,
    **options: Any,
) -> None:
    """Continue a text; accepted draft tokens are coloured."""
    from tandem.orchestrator.cli import client

    _run(client.generate(front_end, prompt, logprobs, options, json))


@app.command()
@flags.accepting(flags.CHAT_MAX_NEW_TOKENS)
@connecting
def chat(
    front_end: FrontEnd,
    system: Annotated[str, typer.Option(help="system message")] = "",
    **options: Any,
) -> None:
    """Talk to a model that has a chat template; accepted draft tokens are coloured."""
    from tandem.orchestrator.cli import chat

    with _one_line():
        raise typer.Exit(chat.chat(front_end, system, options))


@app.command("status")
@connecting
def show_status(
    front_end: FrontEnd,
    json: Annotated[bool, typer.Option("--json", help="print the whole GetStatusResponse")] = False,
) -> None:
    """Show the status of a front end; exit code 1 if no request can be served."""
    from tandem.orchestrator.cli import client

    _run(client.show_status(front_end, json))


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder to write the files to")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVICE=]HOST",
            help="host name or IP address of all services, or of SERVICE only; may be repeated",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            help="name of an additional client or of a drafter that registers; may be repeated"
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(help="days until certificates expire", min=1, max=3650)
    ] = 365,
    only: Annotated[
        bool, typer.Option("--only", help="make certificates only for the named clients")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="replace existing certificates, but keep the CA")
    ] = False,
) -> None:
    """Make a CA, and certificates of the services and of clients, as PEM files.

    If DIR already contains a CA, that CA signs the new certificates.
    """
    from tandem.orchestrator.cli import certificates

    with _one_line():
        for path in certificates.make(
            folder, name or (), client or (), days, force=force, only=only
        ):
            print(path)


@app.command("top")
@connecting
def show_top(
    front_end: FrontEnd,
    every: Annotated[float, typer.Option(help="seconds between two updates", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print one screen and exit")] = False,
) -> None:
    """Watch the status: drafters, verifiers, acceptance, requests; Ctrl-C ends it."""
    from tandem.orchestrator.cli import client

    _run(client.show_top(front_end, every, once))


@contextmanager
def _one_line() -> Iterator[None]:
    """Print an error as one line and exit with code 1. On Ctrl-C, exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except TandemError as problem:
        lost = isinstance(problem, TransportLost)
        hint = "; is `tandem up` running, and do both sides use TLS, or neither?" if lost else ""
        raise SystemExit(f"error: {problem}{hint}") from None


def _run(work: Coroutine[Any, Any, int]) -> None:
    """Run `work` to its end and exit with the code that it returns."""
    with _one_line():
        raise typer.Exit(asyncio.run(work))


def _pass_on(name: str, module: str, does: str) -> None:
    group, _, last = name.rpartition(" ")
    into = bench if group else app

    @into.command(last, context_settings=PASS_ON, help=f"{does} (`tandem {name} --help`).")
    def start(context: typer.Context) -> None:
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *context.args])


_pass_on("drafter", "tandem.drafter_service", "Start one drafter")
_pass_on("verifier", "tandem.verifier_service", "Start one verifier")
_pass_on("orchestrator", "tandem.orchestrator", "Start one orchestrator")
_pass_on("distil", "tandem.models.distil", "Make a draft model for a target")
_pass_on("chaos", "tandem.benchmarks.chaos", "Start a test system and inject faults into it")
_pass_on("bench serve", "tandem.benchmarks.serve", "Put load on a server and measure performance")
