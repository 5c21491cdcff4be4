"""Render a status as the HTML of the status page. All text in the status is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.history import BUCKET_SECONDS, BUCKETS, Figures
from tandem.orchestrator.frontend.status import Status
from tandem.orchestrator.page.plot import Line, minutes, plot, top_of_scale
from tandem.orchestrator.page.style import STYLE

REFRESH_SECONDS = 5
SHOWN_SECONDS = BUCKET_SECONDS * BUCKETS
NOTHING = "–"  # noqa: RUF001  # shown where nothing was counted

Cell = tuple[str, str]  # column title, CSS class
Show = Callable[[float | None], str]


def page(status: Status, version: str, now: str) -> str:
    """Return the HTML of the whole status page. `now` is the time that the page shows."""
    bad = " bad" if status.problems else ""
    state = "not serving" if status.problems else "serving"
    problem = escape("; ".join(status.problems))
    body = [
        f"<header><h1>Tandem</h1><p>{escape(status.model or 'no model')}</p>",
        f'<p class="state{bad}">{state}</p><p class="when">{escape(now)}</p></header>',
        f'<p class="problem">{problem}</p>' if problem else "",
        f'<section class="tiles" aria-label="Last minute">{_tiles(status)}</section>',
        f'<h2>Last minutes</h2><section class="plots">{_plots(status.history)}</section>',
        _replicas("Verifiers", status.verifiers, "none is known", verifiers=True),
        _replicas("Drafters", status.drafters, "none: the verifier decodes without drafts"),
        _clients(status),
        f'<footer>Tandem {escape(version)}. This page as <a href="status.json">JSON</a>, and '
        '<a href="metrics">metrics</a> for Prometheus.</footer>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
        f"<title>Tandem: {state}</title><style>{STYLE}</style></head><body>"
        f"{''.join(body)}</body></html>"
    )


def number(value: float | None) -> str:
    """Format a number with about three significant digits, or return NOTHING for None."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(part: float | None) -> str:
    """Format a fraction as a percentage, or return NOTHING for None."""
    return NOTHING if part is None else f"{100 * part:.0f} %"


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"


def _tiles(status: Status) -> str:
    last = status.last_minute
    drafts, plain = last.goodput_with_drafts, last.goodput_without_drafts
    pays, part = last.goodput_gain, percent(last.steps_with_drafts)
    tiles = (
        ("Tokens per second", number(last.tokens_per_second), "all requests, last minute"),
        ("Acceptance rate", percent(last.acceptance_rate), "of draft tokens"),
        ("Tokens per step", number(last.mean_acceptance_length), "mean acceptance length"),
        (
            "Goodput relative to steps without drafts",
            NOTHING if pays is None else f"{pays:.2f} ×",  # noqa: RUF001
            f"{number(drafts)} in the {part} of steps with drafts, {number(plain)} in others",
        ),
        ("Requests", f"{status.running} running", f"{status.waiting} waiting"),
        ("Ended", f"{last.finished} finished", f"{last.failed} failed, last minute"),
    )
    return "".join(
        f'<div class="tile"><h3>{name}</h3><strong>{value}</strong><small>{more}</small></div>'
        for name, value, more in tiles
    )


def _plots(history: Sequence[Figures]) -> str:
    def line(name: str, style: str, value: Callable[[Figures], float | None]) -> Line:
        ago, points = sum(each.seconds for each in history), []
        for each in history:
            ago -= each.seconds
            points.append((ago, value(each)))
        whole = history and history[-1].seconds >= BUCKET_SECONDS / 2
        return Line(name, style, points if whole else points[:-1])

    rate = line("now", "first", lambda each: each.acceptance_rate)
    return "".join(
        (
            _figure(
                "Tokens per second",
                [line("now", "first", lambda each: each.tokens_per_second)],
                number,
            ),
            _figure("Acceptance rate", [rate], percent, 1.0),
            _figure(
                "Tokens per second of one request",
                [
                    line("with drafts", "first", lambda each: each.goodput_with_drafts),
                    line("without", "second", lambda each: each.goodput_without_drafts),
                ],
                number,
            ),
            _figure(
                "Requests",
                [
                    line("running", "first", lambda each: each.running),
                    line("waiting", "second", lambda each: each.waiting),
                ],
                _count,
            ),
        )
    )


def _figure(name: str, lines: Sequence[Line], show: Show, top: float | None = None) -> str:
    top = top or top_of_scale(lines)
    keys = "".join(
        f'<span><i class="key {each.style}"></i>{each.name} {show(each.last)}</span>'
        for each in lines
    )
    drawn = plot(f"{name} over the last minutes", lines, SHOWN_SECONDS, top)
    return (
        f"<figure><figcaption><b>{name}</b>{keys}</figcaption>{drawn}"
        f'<div class="scale"><span>{minutes(SHOWN_SECONDS)}</span>'
        f"<span>0 to {show(top)}</span><span>now</span></div></figure>"
    )


def _replicas(
    title: str, replicas: Iterable[ReplicaStatus], empty: str, verifiers: bool = False
) -> str:
    head = (
        ("address", "wide"),
        ("state", ""),
        ("model", ""),
        ("device", ""),
        ("dtype", ""),
        *([("exactness", "wide")] if verifiers else []),
        ("sessions", "number"),
        ("KV in use", "number"),
        ("round trip", "number"),
        *([] if verifiers else [("acceptance", "number")]),
    )
    rows = []
    for each in replicas:
        bad = " bad" if each.problem else ""
        state = f'<span class="state{bad}">{escape(each.problem or "serving")}</span>'
        known = each.model
        cells = [escape(each.address), state]
        if known:
            exact = [known.exactness] if verifiers else []
            values = (known.name, known.device, known.dtype, *exact, str(known.sessions))
            cells += map(escape, values)
            cells += [percent(known.cache_usage), f"{each.round_trip_seconds * 1000:.1f} ms"]
            cells += [] if verifiers else [percent(each.acceptance_rate)]
        rows.append(cells)
    return _table(title, head, rows, empty)


def _clients(status: Status) -> str:
    head = (("client", ""), ("running", "number"), ("waiting", "number"))
    rows = [[escape(c.name), str(c.running), str(c.waiting)] for c in status.clients]
    return _table("Requests by client", head, rows, "no requests now")


def _table(title: str, head: Sequence[Cell], rows: Sequence[Sequence[str]], empty: str) -> str:
    """Return a table under a title, or the text `empty` if there are no rows. The cells of the
    table are HTML.
    """
    if not rows:
        return f'<h2>{title}</h2><p class="none">{empty}</p>'
    names = "".join(f'<th scope="col" class="{style}">{name}</th>' for name, style in head)
    lines = []
    for row in rows:
        missing = [""] * (len(head) - len(row))
        cells = (
            f'<td class="{style}" data-label="{name}">{cell}</td>'
            for (name, style), cell in zip(head, [*row, *missing], strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<h2>{title}</h2><div class="table"><table><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
