"""The command `tandem top`: show the status on one screen that is updated periodically."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tandem import AsyncClient
from tandem.orchestrator.cli import status_view as view
from tandem.orchestrator.cli.flags import FrontEnd
from tandem.protos.errors import TandemError
from tandem.v1 import orchestrator_pb2 as api

BARS = " ▁▂▃▄▅▆▇█"
SPARK_WIDTH = 45
ADDRESS_WIDTH = 21  # minimum column width; fits an IPv4 address with a port


async def show(front_end: FrontEnd, every: float, once: bool, console: Console) -> int:
    """Show the status every `every` seconds until cancelled, or only once. Returns exit code 1 if
    `once` is set and no request can be served, otherwise 0.
    """
    address = front_end.address
    async with front_end.connect() as client:
        if once:
            response = await client.status(history=True)
            console.print(frame(response, address))
            return 0 if view.is_serving(response) else 1
        with suppress(asyncio.CancelledError), _screen(console) as update:
            while True:
                update(await _now(client, address))
                await asyncio.sleep(every)
    return 0


@contextmanager
def _screen(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows a status screen. In a terminal, each screen replaces the previous
    one. If the output is not a terminal, each screen is printed below the previous one.
    """
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield partial(live.update, refresh=True)


async def _now(client: AsyncClient, address: str) -> RenderableType:
    """Fetch the status and return it as a screen. If the front end does not answer, return a screen
    with the error instead of failing, because the front end may come back.
    """
    try:
        return frame(await client.status(history=True), address)
    except TandemError as error:
        return Text(f"nobody answers at {address}: {error}", style="red")


def frame(response: api.GetStatusResponse, address: str) -> RenderableType:
    """Return the screen that shows a status."""
    serving = view.is_serving(response)
    head = Text.assemble(
        ("tandem top", "bold"),
        f"  {', '.join(model.name for model in response.models) or 'no model'} at {address}  ",
        ("serving", "green") if serving else ("not serving", "red"),
        *(f"  {problem}" for problem in response.problems),
    )
    parts: list[RenderableType] = [head, Text("")]
    for model in response.models:
        parts += [_figures(model), Text("")]
    parts += [_replicas(response), Text("")]
    parts += [_clients(model.clients) for model in response.models]
    return Group(*parts)


def _figures(model: api.ModelStatus) -> RenderableType:
    """Return a table of the last minute's metrics, with bar charts of the last 15 minutes."""
    last = model.last_minute
    rate = view.percent(last.acceptance_rate) if last.HasField("acceptance_rate") else view.NOTHING
    rows: Sequence[tuple[str, str, Callable[[api.RecentFigures], float]]] = (
        ("tokens/s", f"{last.tokens_per_second:.1f}", lambda each: each.tokens_per_second),
        ("acceptance rate", rate, lambda each: each.acceptance_rate),
        (
            "mean acceptance length",
            view.optional(last, "mean_acceptance_length", ".2f"),
            lambda each: each.mean_acceptance_length,
        ),
    )
    table = Table.grid(padding=(0, 2))
    for name, value, figure in rows:
        bars = spark([figure(each) for each in model.history])
        table.add_row(Text(name, "dim"), value, Text(bars, "cyan", no_wrap=True))
    running = f"{model.requests_running} running, {model.requests_waiting} waiting"
    ended = f"{last.requests_finished} finished, {last.requests_failed} failed in the last minute"
    return Group(
        table,
        Text.assemble(("goodput", "dim"), f"  {view.goodput(last)}"),
        Text.assemble(("requests", "dim"), f"  {running}; {ended}"),
    )


def _replicas(response: api.GetStatusResponse) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in view.HEAD:
        least = ADDRESS_WIDTH if name == "address" else None
        table.add_column(name, no_wrap=name != "address", overflow="fold", min_width=least)
    for cells in view.replica_rows(response):
        row = dict(zip(view.HEAD, cells, strict=True))
        style = {"state": "green" if row["state"] == "serving" else "red"}
        table.add_row(*(Text(row[name], style.get(name, "")) for name in view.HEAD))
    return table


def _clients(clients: Sequence[api.ClientStatus]) -> RenderableType:
    if not clients:
        return Text("no requests now", "dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("client", "running", "waiting"):
        table.add_column(name)
    for each in clients:
        table.add_row(Text(each.name), str(each.running), str(each.waiting))
    return table


def spark(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Return values as a bar chart of at most `width` characters. If there are more values than
    characters, each bar shows the mean of several values.
    """
    size = max(1, -(-len(values) // width))
    means = [
        sum(part) / len(part)
        for part in (values[at : at + size] for at in range(0, len(values), size))
    ]
    most = max(means, default=0.0)
    if most <= 0:
        return BARS[0] * len(means)
    steps = len(BARS) - 1
    return "".join(BARS[max(0 if mean <= 0 else 1, round(steps * mean / most))] for mean in means)
