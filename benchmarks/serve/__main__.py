"""Put load on a Tandem, or on any server that speaks as OpenAI's, and measure what users notice.

    tandem bench serve --request-rate 4 --num-prompts 80 --goodput ttft:500 --goodput tpot:50

A Tandem also gets the same requests without drafts, in turn, so that whatever else the machine does
hits both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import typer
from rich.progress import Progress

from tandem.benchmarks.serve import asking, flags, load, plot, prompts, report, summary
from tandem.benchmarks.serve.load import Ask, Load
from tandem.benchmarks.serve.record import Record
from tandem.orchestrator.cli.flags import FrontEnd, connecting
from tandem.protos.errors import TandemError

DRAFTS, PLAIN = "drafts", "plain"
ALL = float("inf")
Groups = dict[str, list[Record]]
Measured = tuple[str, Groups, dict[str, float]]  # the model, records and seconds


async def measure(
    server: AbstractAsyncContextManager[tuple[str, Ask]],
    asked: Sequence[prompts.Prompt],
    how: Load,
    turns: int,
    baseline: bool,
) -> Measured:
    """Send the requests with drafts and, with `baseline`, also without. Raises TandemError."""
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


app = typer.Typer(add_completion=False, rich_markup_mode=None)  # rich's tables cut names


@app.command()
@connecting
def main(
    front_end: FrontEnd,
    url: flags.Url = "",
    model: flags.Model = "",
    key: flags.Key = "none",
    file: flags.File = None,
    count: flags.Count = 80,
    rate: flags.Rate = ALL,
    at_once: flags.AtOnce = None,
    tokens: flags.Tokens = 64,
    temperature: flags.Temperature = 0.0,
    seed: flags.Seed = 0,
    ignore_eos: flags.IgnoreEos = True,
    baseline: flags.Baseline = True,
    turns: flags.Turns = 4,
    goodput: flags.Goodput = None,
    out: flags.Out = None,
    picture: flags.Picture = None,
) -> None:
    """Put load on a server, and print what users notice; exits with 1 if a request failed."""
    limits = flags.limits_of(goodput or ())
    options = asking.Options(tokens, temperature, seed, ignore_eos)
    endpoint, how = asking.endpoint(url, model, options, key), Load(rate, at_once, seed)
    server = endpoint if url else asking.tandem(front_end, options)
    try:
        asked = prompts.read(file, count)
        served, groups, seconds = asyncio.run(
            measure(server, asked, how, turns, baseline and not url)
        )
        if picture:
            plot.draw(picture, groups)
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    found = {group: summary.results(own, seconds[group], limits) for group, own in groups.items()}
    report.show(f"{served} at {url or front_end.address}: {count} prompts, {tokens} tokens", found)
    if out:
        about = {
            "backend": "openai" if url else "tandem",
            "model_id": served,
            "num_prompts": count,
            "request_rate": "inf" if rate == ALL else rate,
            "max_concurrency": at_once,
            "categories": summary.by_category(groups[DRAFTS]),
        }
        report.write(out, about, found)
    if errors := [error for result in found.values() for error in result["errors"]]:
        raise SystemExit(f"error: {len(errors)} requests failed, the first with {errors[0]}")


if __name__ == "__main__":
    app()
