"""Send many requests to Tandem, or to any server with OpenAI's API, and measure what users notice.

    tandem bench serve --request-rate 4 --num-prompts 80 --goodput ttft:500 --goodput tpot:50

If the server is Tandem, the same requests are by default also sent without drafts. The requests are
sent in parts, alternately with and without drafts, so that other activity on the machine affects
both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from tandem.benchmarks.serve import asking, load, prompts, report, summary
from tandem.benchmarks.serve.load import Ask, Load
from tandem.benchmarks.serve.record import Record
from tandem.orchestrator.cli.flags import FrontEnd, connecting
from tandem.protos.errors import TandemError

DRAFTS, PLAIN = "drafts", "plain"
ALL_AT_ONCE = float("inf")  # the request rate at which all requests are sent at once
LIMITED = ("ttft", "tpot", "e2el")  # metrics that --goodput can limit
Groups = dict[str, list[Record]]
Measured = tuple[str, Groups, dict[str, float]]  # model name, records by group, seconds by group

# If vLLM's `bench serve` has an equivalent option, the option here has the same name.
Url = Annotated[
    str,
    typer.Option(help="server with OpenAI's API to measure instead: http://127.0.0.1:8000/v1"),
]
Model = Annotated[str, typer.Option(help="with --url: model; by default the server's first model")]
Key = Annotated[str, typer.Option(help="API key, with --url", envvar="OPENAI_API_KEY")]
File = Annotated[
    Path | None,
    typer.Option("--prompts", help="JSONL file whose lines have `prompt`, `question` or `turns`"),
]
Count = Annotated[int, typer.Option("--num-prompts", min=1)]
Rate = Annotated[
    float,
    typer.Option(
        "--request-rate",
        help="mean requests per second of a Poisson process; inf sends all requests at once",
        min=0.001,
    ),
]
AtOnce = Annotated[int | None, typer.Option("--max-concurrency", help="requests at once", min=1)]
Tokens = Annotated[int, typer.Option("--max-tokens", help="maximum tokens per answer", min=1)]
Temperature = Annotated[float, typer.Option(min=0.0)]
Seed = Annotated[int, typer.Option(help="seed of arrival times and of sampling", min=0)]
IgnoreEos = Annotated[bool, typer.Option(help="ignore end tokens: all answers have full length")]
Baseline = Annotated[bool, typer.Option(help="also measure without drafts; ignored with --url")]
Turns = Annotated[
    int, typer.Option(help="parts of the requests, each sent with and without drafts", min=1)
]
Goodput = Annotated[
    list[str] | None, typer.Option(help="latency limit: ttft:MS, tpot:MS or e2el:MS; repeatable")
]
Out = Annotated[Path | None, typer.Option("--json", help="write all results to this JSON file")]
Picture = Annotated[
    Path | None,
    typer.Option("--plot", help="plot the latencies to this file; requires matplotlib"),
]


async def measure(
    server: AbstractAsyncContextManager[tuple[str, Ask]],
    asked: Sequence[prompts.Prompt],
    how: Load,
    turns: int,
    baseline: bool,
) -> Measured:
    """Send all requests with drafts. If `baseline` is true, also send them without drafts. Raises
    TandemError.
    """
    groups: Groups = {DRAFTS: [], PLAIN: []} if baseline else {DRAFTS: []}
    seconds = dict.fromkeys(groups, 0.0)
    async with server as (model, ask):
        with Progress(transient=True) as progress:
            task = progress.add_task("requests", total=len(asked) * len(groups))
            for part, drafts in load.blocks(len(asked), turns, baseline):
                name = DRAFTS if drafts else PLAIN
                own = [asked[place] for place in part]
                found, took = await load.send(how, own, drafts, ask, lambda: progress.advance(task))
                groups[name] += found
                seconds[name] += took
    return model, groups, seconds


app = typer.Typer(add_completion=False, rich_markup_mode=None)  # rich would truncate option names


@app.command()
@connecting
def main(
    front_end: FrontEnd,
    url: Url = "",
    model: Model = "",
    key: Key = "none",
    file: File = None,
    count: Count = 80,
    rate: Rate = ALL_AT_ONCE,
    at_once: AtOnce = None,
    tokens: Tokens = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    ignore_eos: IgnoreEos = True,
    baseline: Baseline = True,
    turns: Turns = 4,
    goodput: Goodput = None,
    out: Out = None,
    picture: Picture = None,
) -> None:
    """Send many requests to a server, and print latencies, rates and acceptance. Exits with 1 if a
    request failed.
    """
    limits = limits_of(goodput or ())
    options = asking.Options(tokens, temperature, seed, ignore_eos)
    endpoint, how = asking.endpoint(url, model, options, key), Load(rate, at_once, seed)
    server = endpoint if url else asking.tandem(front_end, options)
    try:
        asked = prompts.read(file, count)
        served, groups, seconds = asyncio.run(
            measure(server, asked, how, turns, baseline and not url)
        )
        if picture:
            report.draw(picture, groups)
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    found = {group: summary.results(own, seconds[group], limits) for group, own in groups.items()}
    report.show(f"{served} at {url or front_end.address}: {count} prompts, {tokens} tokens", found)
    if out:
        about = {
            "backend": "openai" if url else "tandem",
            "model_id": served,
            "num_prompts": count,
            "request_rate": "inf" if rate == ALL_AT_ONCE else rate,
            "max_concurrency": at_once,
            "categories": summary.by_category(groups[DRAFTS]),
        }
        report.write(out, about, found)
    if errors := [error for result in found.values() for error in result["errors"]]:
        raise SystemExit(f"error: {len(errors)} requests failed, the first with {errors[0]}")


def limits_of(given: Sequence[str]) -> dict[str, float]:
    """Parse latency limits such as `ttft:500`, in milliseconds."""
    found = {}
    for each in given:
        name, _, limit = each.partition(":")
        try:
            if name not in LIMITED:
                raise ValueError
            found[name] = float(limit)
        except ValueError:
            raise typer.BadParameter(f"{each} is not ttft:MS, tpot:MS or e2el:MS") from None
    return found


if __name__ == "__main__":
    app()
