"""Show a GetStatusResponse in a terminal, for `tandem status` and `tandem top`. `tandem up` prints
one of the tables, which shows the model, device and other properties of each service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import ByteSize
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.protos.types import EXACT
from tandem.v1 import orchestrator_pb2 as api

HEAD = ("service", "address", "state", "sessions", "KV", "round trip", "acceptance")
HELD = (
    *("service", "model", "device", "dtype", "weights", "context", "fit", "kernels"),
    *("tokenizer", "exactness"),
)
FIGURES = ("weights", "context", "fit")  # columns whose values are never wrapped
WIDTH = 124  # width in characters of the table that `held_lines` returns
INEXACT = "exact unavailable: "  # prefix of an `exactness` value that gives a reason
NOTHING = "-"  # shown in place of a value that is not known
Named = tuple[str, api.ReplicaStatus]


def is_serving(response: api.GetStatusResponse) -> bool:
    """Whether requests can be served: every model needs a serving verifier, but no drafter."""
    verifiers = [any(each.serving for each in model.verifiers) for model in response.models]
    return bool(verifiers) and all(verifiers) and not response.problems


def show_status(response: api.GetStatusResponse) -> None:
    """Print a table of the replicas, a table of the services' models, and lines with metrics."""
    table = [HEAD, *replica_rows(response)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    for line in (*held_lines(replicas(response)), *status_lines(response)):
        print(line)


def replica_rows(response: api.GetStatusResponse) -> list[tuple[str, ...]]:
    """Return one table row for each replica, with the columns of HEAD."""
    return [(name, *_cells(each)) for name, each in replicas(response)]


def replicas(response: api.GetStatusResponse) -> list[Named]:
    """Return all replicas with their names, the verifiers first. If a role has several replicas,
    they are numbered.
    """
    roles = {
        "verifier": [each for model in response.models for each in model.verifiers],
        "drafter": [each for model in response.models for each in model.drafters],
    }
    return [
        (f"{role} {number}" if len(found) > 1 else role, each)
        for role, found in roles.items()
        for number, each in enumerate(found, 1)
    ]


def held_lines(services: Iterable[Named]) -> list[str]:
    """Return the lines of a table that shows the model, device and other properties of each
    service. A service that has not reported its model gets no row. Words that are too long for a
    column are wrapped.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in HELD:
        table.add_column(name, no_wrap=name in FIGURES, overflow="fold")
    for name, each in services:
        if each.model:
            table.add_row(*map(Text, (name, *_held(each))))
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as printed:
        console.print(table)
    return ["", *(line.rstrip() for line in printed.get().splitlines()), ""] if table.rows else []


def _held(replica: api.ReplicaStatus) -> tuple[str, ...]:
    """Return the table cells of a service for all columns of HELD except the first, which is the
    service's name. A value that the service does not report is shown as NOTHING.
    """
    size, inexact = replica.weights_bytes, f"no: {replica.exactness.removeprefix(INEXACT)}"
    return (
        replica.model,
        replica.device,
        replica.dtype,
        ByteSize(size).human_readable() if size else NOTHING,
        str(replica.context_length or NOTHING),
        str(replica.full_sessions or NOTHING),
        replica.kernels or NOTHING,
        _tokenizer(replica),
        inexact if replica.exactness not in (EXACT, "") else replica.exactness or NOTHING,
    )


def _tokenizer(replica: api.ReplicaStatus) -> str:
    """Return how a drafter's tokenizer compares with the target's, or NOTHING if not known."""
    masked = f", {replica.masked_tokens} masked" if replica.masked_tokens else ""
    return f"{replica.tokenizer}{masked}" if replica.tokenizer else NOTHING


def _cells(replica: api.ReplicaStatus) -> tuple[str, ...]:
    state = "serving" if replica.serving else replica.problem or "not serving"
    if not replica.model:
        return (replica.address, state, *[""] * (len(HEAD) - 3))
    return (
        replica.address,
        state,
        str(replica.sessions),
        f"{100 * replica.kv_cache_usage:.0f} %",
        f"{replica.round_trip_seconds * 1000:.1f} ms",
        percent(replica.acceptance_rate) if replica.draft_tokens else "",
    )


def status_lines(response: api.GetStatusResponse) -> Iterator[str]:
    """Yield lines with the last minute's metrics, problems that prevent serving, and the load."""
    for model in response.models:
        yield f"last minute: {recent(model.last_minute)}"
    for problem in response.problems:
        yield f"not serving: {problem}"
    for model in response.models:
        load = f"{model.requests_running} running, {model.requests_waiting} waiting"
        yield f"{model.name or 'no model'}: {load}; tandem {response.version}"


def recent(figures: api.RecentFigures) -> str:
    """Format the metrics of one time interval as a single line."""
    rate = percent(figures.acceptance_rate) if figures.HasField("acceptance_rate") else NOTHING
    return (
        f"{figures.tokens_per_second:.1f} tokens/s, acceptance rate {rate}, "
        f"mean acceptance length {optional(figures, 'mean_acceptance_length', '.2f')}; "
        f"goodput {goodput(figures)}; "
        f"{figures.requests_finished} finished, {figures.requests_failed} failed"
    )


def goodput(figures: api.RecentFigures) -> str:
    """Format the goodput per request with drafts and without drafts."""
    drafts = optional(figures, "goodput_with_drafts", ".0f")
    plain = optional(figures, "goodput_without_drafts", ".0f")
    line = f"{drafts} tokens/s with drafts, {plain} without"
    if figures.HasField("steps_with_drafts"):
        line += f", {percent(figures.steps_with_drafts)} of steps with drafts"
    if figures.HasField("goodput_gain"):
        line += f" (speed-up over all steps: {figures.goodput_gain:.2f})"
    return line


def optional(figures: api.RecentFigures, field: str, form: str) -> str:
    """Format a metric, or return NOTHING if the response does not contain it."""
    given = any(found.name == field for found, _ in figures.ListFields())
    return format(getattr(figures, field), form) if given else NOTHING


def percent(part: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * part:.0f} %"
