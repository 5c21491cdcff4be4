"""Generate tables in RESULTS.md and README.md from the JSON files that benchmarks write.

    python -m tandem.benchmarks.page            # `make results`
    python -m tandem.benchmarks.page --check    # fails if a page is out of date

To update the results of a benchmark, run it with `--json benchmarks/results/NAME.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- `make results` writes (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
Rows = Sequence[Mapping[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Return the JSON file of a benchmark: title, command, machine, date, commit and rows."""
    file = FOLDER / f"{name}.json"
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return written


def one(rows: Rows, **values: Any) -> Mapping[str, Any]:
    """Return the only row whose fields have the given values."""
    (found,) = (row for row in rows if all(row[name] == each for name, each in values.items()))
    return found


def equality(rows: Rows) -> str:
    """Describe how many texts differ from those of `generate()`."""
    (row,) = rows
    differing = len(row["differing"])
    return f"{row['sequences']:,} texts, {row['tokens']:,} tokens: {differing} texts differ"


def options(rows: Rows) -> str:
    """Describe how many answers to requests with random options are changed by drafts."""
    (row,) = rows
    return (
        f"{row['requests']:,} requests with random options, {row['accepted']:,} accepted draft"
        f" tokens: {row['differing']} answers differ from those without drafts"
    )


def _gain(rows: Rows, at_once: int, temperature: float, round_trip: float) -> tuple[float, ...]:
    """Return the tokens per second without drafts and with them, and the ratio."""
    row = one(rows, at_once=at_once, temperature=temperature, round_trip=round_trip)
    rates = (row["systems"][name]["rate"] for name in ("plain", "drafts"))
    return *rates, row["ratios"]["to plain"]


def one_request(rows: Rows) -> str:
    """Describe the speedup from drafts for one request at a time."""
    plain, drafts, ratio = _gain(rows, 1, 0, 0)
    warm = _gain(rows, 1, 1, 0)[-1]
    return (
        f"{drafts:.0f} instead of {plain:.0f} tokens/s ({ratio:.2f} times) at temperature 0;"
        f" {warm:.2f} times at temperature 1"
    )


def far_or_many(rows: Rows) -> str:
    """Describe the speedup from drafts with a distant drafter, and for eight requests at once."""
    far, many = _gain(rows, 1, 0, 20)[-1], _gain(rows, 8, 0, 0)[-1]
    return f"{far:.2f} times at 20 ms; {many:.2f} times for eight requests; both at temperature 0"


def _fastest(rows: Rows) -> tuple[float, float]:
    """Return the tokens per second of Tandem and of the fastest configuration of llama.cpp."""
    speeds = {row["system"]: row["median_tokens_per_second"] for row in rows}
    peers = (speed for name, speed in speeds.items() if name.startswith("llama.cpp"))
    return speeds["Tandem"], max(peers)


def beside_llama(rows: Rows) -> str:
    """Describe the tokens per second of the whole system and of llama.cpp."""
    own, other = _fastest(rows)
    half, others_half = _fastest(read("throughput-bfloat16")["rows"])
    return (
        f"{own:.0f} tokens/s, llama.cpp {other:.0f} (float32, temperature 0);"
        f" {half:.0f} and {others_half:.0f} in bfloat16 (`--dtype bfloat16`)"
    )


def steps(rows: Rows) -> str:
    """Describe the step times of the engine and of the faster configuration of llama.cpp."""

    def fed(sessions: int, tokens: int) -> tuple[float, float]:
        like = {"dtype": "float32", "sessions": sessions, "tokens": tokens, "draft": "chain"}
        own, *others = (
            one(rows, system=name, **like)["milliseconds"]
            for name in ("tandem", "llama.cpp", "and flash")
        )
        return own, min(others)

    (single, other), (many, others_many) = fed(1, 1), fed(8, 5)
    return (
        f"{single:.1f} ms for one token, llama.cpp {other:.1f};"
        f" {many:.0f} ms for 8 sessions x 5 tokens, llama.cpp {others_many:.0f}"
    )


def useless(rows: Rows) -> str:
    """Describe the speed with a drafter that sends garbage, relative to plain decoding."""
    single, many = (
        one(rows, fault="sends garbage", rule="match", streams=count)["ratio"] for count in (1, 8)
    )
    return (
        f"with a drafter that sends garbage, one stream has {single:.2f} times the speed of plain"
        f" decoding, and eight streams have {many:.2f} times"
    )


def chaos(rows: Rows) -> str:
    """Describe lost, duplicated and changed tokens and the longest gap during faults."""
    (row,) = rows
    counts = f"{row['lost']} lost, {row['duplicated']} duplicated, {row['changed']} changed"
    longest = max(row["gaps"].values())
    size = f"{row['streams']:,} streams, {row['tokens']:,} tokens"
    return f"{size}: {counts}; the longest gap was {longest:.2f} s"


def overload(rows: Rows) -> str:
    """Describe how soon requests are refused under overload, and how gaps of streams grow."""
    (row,) = rows
    soon, late = 1e3 * row["refused_p50"], 1e3 * row["refused_p99"]
    return (
        f"refusals take {soon:.0f} ms (median) and {late:.0f} ms (99 %);"
        f" gaps of running streams grow {row['gap_ratio']:.2f} times"
    )


def grammars(rows: Rows) -> str:
    """Describe the tokens per step with grammars but no drafter, and how many answers are invalid
    or differ.
    """
    answers, differing, invalid = (
        sum(row[name] for row in rows) for name in ("answers", "differing", "invalid")
    )
    saved = one(rows, drafts="suffix")["tokens_per_step"]
    return (
        f"{saved:.2f} tokens per step without a drafter;"
        f" {answers:,} answers: {invalid} are not valid, {differing} differ"
    )


FIGURES: tuple[tuple[str, str, Callable[[Rows], str]], ...] = (  # question, JSON file, formatter
    ("Is it the text of `generate()`?", "equality", equality),
    ("Do options and drafts work together?", "options", options),
    ("What do drafts gain for one request?", "links", one_request),
    ("And with a drafter 20 ms away, or eight requests?", "links", far_or_many),
    ("How does that compare with llama.cpp?", "throughput", beside_llama),
    ("How fast is a step of the engine?", "engine", steps),
    ("What does a useless drafter cost?", "slow_drafter", useless),
    ("What do clients notice of 500 faults?", "chaos", chaos),
    ("What happens at ten times the load?", "overload", overload),
    ("What do grammars save?", "structured", grammars),
)


def table(*rows: Sequence[str]) -> str:
    """Return rows as a Markdown table. The first row is the table header."""
    head, *body = ("| " + " | ".join(row) + " |\n" for row in rows)
    return head + "|---" * len(rows[0]) + "|\n" + "".join(body)


def main_table() -> str:
    """Return the table of RESULTS.md, with one row for each question that a benchmark answers."""
    rows = [("question", "figure", "command", "machine", "commit and date")]
    for question, name, figure in FIGURES:
        of = read(name)
        origin = f"`{of['command']}`", of["machine"], f"{of['commit']}, {of['date']}"
        rows.append((question, figure(of["rows"]), *origin))
    return table(*rows)


def speeds() -> str:
    """Return the table of README.md: tokens per second with drafts and without."""
    of = read("links")
    head = ("requests", "temperature", "round trip", "plain decoding", "with drafts", "ratio")
    rows: list[Sequence[str]] = [head]
    for at_once in (1, 8):
        for heat in (0, 1):
            both = zip(*(_gain(of["rows"], at_once, heat, ms) for ms in (0, 20)), strict=True)
            told = (
                f"{near:.{digits}f} / {far:.{digits}f}"
                for digits, (near, far) in zip((0, 0, 2), both, strict=True)
            )
            rows.append((str(at_once), str(heat), "0 / 20 ms", *told))
    origin = f"Measured by `{of['command']}` on {of['date']} (commit {of['commit']})."
    return f"{table(*rows)}\n{origin}\n"


PARTS: Mapping[str, Callable[[], str]] = {"figures": main_table, "speeds": speeds}
PAGES = (ROOT / "benchmarks" / "RESULTS.md", ROOT / "README.md")


def renewed(text: str) -> str:
    """Generate the text between each pair of markers in a page from the JSON files, and return the
    updated page.
    """
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


def main(
    check: Annotated[
        bool, typer.Option("--check", help="only check that pages are up to date")
    ] = False,
) -> None:
    """Update the tables of RESULTS.md and README.md from the JSON files in benchmarks/results."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) == text:
            continue
        if check:
            raise SystemExit(f"error: {page.name} is out of date: run `make results`")
        page.write_text(new, encoding="utf-8")
        print(f"{page.name} was updated")


if __name__ == "__main__":
    typer.run(main)
