"""The flags of `tandem bench serve`, with the names of vLLM's command where they do the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

LIMITED = ("ttft", "tpot", "e2el")

Url = Annotated[str, typer.Option(help="an OpenAI server instead, http://127.0.0.1:8000/v1")]
Model = Annotated[str, typer.Option(help="model to ask, with --url; by default the server's first")]
Key = Annotated[str, typer.Option(help="API key, with --url", envvar="OPENAI_API_KEY")]
File = Annotated[
    Path | None, typer.Option("--prompts", help="JSONL with prompt, or Spec-Bench's turns")
]
Count = Annotated[int, typer.Option("--num-prompts", min=1)]
Rate = Annotated[
    float,
    typer.Option("--request-rate", help="requests a second, Poisson; inf sends all", min=0.001),
]
AtOnce = Annotated[int | None, typer.Option("--max-concurrency", help="requests at once", min=1)]
Tokens = Annotated[int, typer.Option("--max-tokens", help="tokens of an answer at most", min=1)]
Temperature = Annotated[float, typer.Option(min=0.0)]
Seed = Annotated[int, typer.Option(help="seed of arrivals and of answers", min=0)]
IgnoreEos = Annotated[bool, typer.Option(help="answers of full length")]
Baseline = Annotated[bool, typer.Option(help="measure without drafts too; not with --url")]
Turns = Annotated[int, typer.Option(help="turns of requests with and without drafts", min=1)]
Goodput = Annotated[
    list[str] | None, typer.Option(help="ttft:MS, tpot:MS or e2el:MS; may be repeated")
]
Out = Annotated[Path | None, typer.Option("--json", help="write all figures")]
Picture = Annotated[Path | None, typer.Option("--plot", help="write distributions; matplotlib")]


def limits_of(given: Sequence[str]) -> dict[str, float]:
    """Parse limits such as `ttft:500`, in ms."""
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
