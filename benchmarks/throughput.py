"""Compare the tokens per second of Tandem, transformers and llama.cpp in one run. transformers runs
with and without assisted decoding. llama.cpp, if it is installed, runs without drafts and with
chains of several lengths.

Each process uses one core. The systems take turns prompt by prompt, so that other activity on the
machine affects all of them alike. At temperature 0 all systems should emit the same tokens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers import llamacpp
from tandem.benchmarks.peers.contest import CONCURRENCY, Contest, Runs
from tandem.benchmarks.peers.llamacpp import LlamaCpp
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.systems import Plain, Prompt, System, Tandem, load, tandem_up
from tandem.protos.errors import TandemError

DRAFTED = (0, 2, 3, 4, 6)  # lengths of llama.cpp's draft chains; 0 is without drafts
CONTEXT = 1024  # size of llama.cpp's KV cache in tokens
REFERENCE = "generate()"


@dataclass(frozen=True, slots=True)
class Entry:
    """The model pair that all systems run, and their settings. `llama` has the GGUF files of the
    pair, or is None if llama.cpp is not installed.
    """

    target: Path
    draft: Path
    dtype: str
    temperature: float
    ray: bool
    llama: tuple[Path, Path] | None

    def library(self) -> dict[str, System]:
        """Load the systems that run in this process: transformers and, if installed, llama.cpp."""
        network, small = load(self.target, self.dtype), load(self.draft, self.dtype)
        found: dict[str, System] = {
            REFERENCE: Plain(network, temperature=self.temperature),
            "generate(assistant_model=...)": Plain(network, small, self.temperature),
        }
        if self.llama:
            target, draft = self.llama
            found |= {
                f"llama.cpp, {drafted} drafted" if drafted else "llama.cpp": LlamaCpp(
                    target, draft if drafted else None, drafted, CONTEXT, self.temperature
                )
                for drafted in DRAFTED
            }
        return found

    async def compete(self, prompts: Sequence[Prompt], max_new_tokens: int) -> dict[str, Runs]:
        """Load and start all systems, then run the comparison. Raises Unusable."""
        torch.set_num_threads(1)
        # the processes that `tandem_up` starts read these variables
        os.environ["TANDEM__VERIFIER__DTYPE"] = self.dtype
        # Tandem must not draft from its earlier answers
        os.environ["TANDEM__VERIFIER__RECENT_TOKENS"] = "0"
        temperature = self.temperature
        library = self.library()
        async with tandem_up(self.target, self.draft, self.ray) as stub:
            own: dict[str, System] = {
                "Tandem": Tandem(stub, temperature=temperature),
                "Tandem, chain of 4": Tandem(stub, 4, 1, temperature),
                "Tandem, plain decoding": Tandem(stub, 0, temperature=temperature),
            }
            crowd = (f"Tandem, {CONCURRENCY} at once", Tandem(stub, temperature=temperature))
            return await Contest(library | own, crowd, max_new_tokens).run(prompts)


@contextmanager
def converted(target: Path, draft: Path, dtype: str) -> Iterator[tuple[Path, Path] | None]:
    """Convert the model pair to temporary GGUF files, and yield their paths. The files are deleted
    at the end of this context. Yields None if llama.cpp is not installed.
    """
    if not llamacpp.installed():
        yield None
        return
    with TemporaryDirectory() as temporary:
        files = Path(temporary) / "target.gguf", Path(temporary) / "draft.gguf"
        for folder, file in zip((target, draft), files, strict=True):
            llamacpp.convert(folder, file, dtype)
        yield files


def entries(runs: Mapping[str, Runs]) -> list[dict[str, Any]]:
    """Return the results of each system. Ratios are speedups over plain `generate()`. `total_ratio`
    is noisier than `median_ratio`.
    """
    reference = runs[REFERENCE]
    return [
        {
            "system": name,
            "requests": len(each.completions),
            "median_tokens_per_second": each.median_speed,
            "total_tokens_per_second": each.total_speed,
            "median_ratio": each.median_speed / reference.median_speed,
            "total_ratio": each.total_speed / reference.total_speed,
            "tokens_per_step": each.tokens_per_step,
            "differing": each.differing(reference),
        }
        for name, each in runs.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Format the results as a table."""
    headings = ("system", "tokens/s, median\nof requests", "ratio", "tokens/s\nin all", "ratio")
    shown = Table(*headings, "tokens\nper step", "tokens\ndiffer", box=None)
    for row in rows:
        shown.add_row(
            row["system"],
            f"{row['median_tokens_per_second']:.0f}",
            f"{row['median_ratio']:.2f}",
            f"{row['total_tokens_per_second']:.0f}",
            f"{row['total_ratio']:.2f}",
            f"{row['tokens_per_step']:.2f}" if row["tokens_per_step"] else "",
            f"{row['differing']} of {row['requests']}",
        )
    return shown


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    prompts: Annotated[
        int, typer.Option(help="number of story prompts", min=1, max=story_count())
    ] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="maximum tokens per completion", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0: greedy", min=0)] = 0.0,
    dtype: Annotated[str, typer.Option(help=f"one of {', '.join(llamacpp.KINDS)}")] = "float32",
    ray: Annotated[
        bool, typer.Option(help="run Tandem's cell on Ray Serve, as `tandem up` does")
    ] = True,
    json: report.JsonFile = None,
) -> None:
    """Measure tokens per second of Tandem, transformers and llama.cpp, side by side."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with converted(target, draft, dtype) as files:
            entry = Entry(target, draft, dtype, temperature, ray, files)
            rows = entries(asyncio.run(entry.compete(tokenised(target, prompts), max_new_tokens)))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = report.title(
        target,
        draft,
        f"{prompts} prompts, up to {max_new_tokens} tokens each, temperature {temperature}",
        dtype,
    )
    report.publish(heading, table(rows), rows, json)


if __name__ == "__main__":
    typer.run(main)
