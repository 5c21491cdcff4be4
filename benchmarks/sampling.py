"""Measure how many milliseconds it takes to draw a token from a large vocabulary.

No model runs: the logits are synthetic, either peaked like those of language models, or flat. The
benchmark measures what the rule `match` does at each visited node: apply the sampling options, draw
a token, and report log-probabilities. The reported time is the CPU time of one thread, so other
processes on the machine have little influence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Annotated

import torch
import typer
from rich.progress import track
from rich.table import Table

from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.engine.sampling.drawing import draw
from tandem.engine.sampling.likeliest import leading, logprobs
from tandem.engine.sampling.sampler import LogitsProcessor, draws, warp
from tandem.protos.types import MAX_LOGPROBS, SamplingParams

LENGTH = 1000  # number of tokens of the text; the first half is the prompt
CHILDREN = 256  # number of likeliest tokens among which the drafter chooses children
CHECKED = 80  # number of rows of logits that are checked for NaN at once
OPTIONS = {
    "temperature": SamplingParams(1.0),
    "top-k 50, top-p .95": SamplingParams(1.0, top_k=50, top_p=0.95),
    "top-p .9": SamplingParams(1.0, top_p=0.9),
    "min-p .05": SamplingParams(1.0, min_p=0.05),
    "penalties": SamplingParams(
        1.0,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias=((5, 2.0), (70, -3.0)),
        prompt_length=LENGTH // 2,
    ),
    "log-probabilities": SamplingParams(1.0, logprobs=MAX_LOGPROBS),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """The milliseconds that an operation takes per node or per step. `defined` is the time of the
    reference implementation, and `done` is the time of the implementation that the services use.
    """

    vocabulary: int
    logits: str
    options: str
    defined: float
    done: float
    per: str = "node"


def flat(count: int, seed: int) -> torch.Tensor:
    """Generate independent, normally distributed logits, [count]. The likelier half of the tokens
    has 85 % of the probability.
    """
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def peaked(count: int, seed: int) -> torch.Tensor:
    """Generate logits, [count], whose probabilities follow a power law: the probability of the
    token with rank r is proportional to r ** -1.6, with random variation. Some 30 tokens have 90 %
    of the probability.
    """
    ranks = torch.randperm(count, generator=torch.Generator().manual_seed(seed)) + 1.0
    return flat(count, seed) / 2 - 1.6 * ranks.log()


KINDS = {"peaked": peaked, "flat": flat}


def text(vocabulary: int) -> list[int]:
    """Return random token ids, some of which occur several times."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(LENGTH, generator=generator) ** 3 * vocabulary).int().tolist()


class Node:
    """Draws tokens in two ways: with the reference implementation, and as the services do. `rows`,
    [nodes, vocab], are the logits of all nodes.
    """

    def __init__(self, rows: torch.Tensor, params: SamplingParams) -> None:
        self._rows = rows
        self._params = params
        self._adjustment = LogitsProcessor(params, text(rows.shape[-1]))

    def defined(self, node: int) -> object:
        """Sample with the reference implementation, which scans the whole vocabulary."""
        row, params = self._rows[node], self._params
        (token,) = draws(self._adjustment.apply(row, (1, 2))[None], params, (node,))
        if params.logprobs is None:
            return token
        scores = row.log_softmax(-1)
        return scores[token].item(), scores.topk(params.logprobs).values.tolist()

    def done(self, node: int) -> object:
        """Sample with the implementation that the verifier uses."""
        row, params = self._rows[node], self._params
        token = draw(self._adjustment.apply(row, (1, 2)), params, node)
        return token if params.logprobs is None else logprobs(row, token, params.logprobs)


def milliseconds(action: Callable[[int], object], nodes: int, repetitions: int) -> float:
    """Return the CPU milliseconds that an action takes per node: the median over all repetitions of
    the mean over all nodes.
    """
    times = []
    for _ in range(1 + repetitions):
        began = time.thread_time()
        for node in range(nodes):
            action(node)
        times.append(1e3 * (time.thread_time() - began) / nodes)
    return median(times[1:])  # the first repetition is a warm-up


@torch.inference_mode()
def measure(vocabularies: Sequence[int], nodes: int, repetitions: int) -> list[Figure]:
    """Measure both implementations with all vocabulary sizes, kinds of logits and sampling options.
    The reference implementation is slow, so it is measured at fewer nodes.
    """
    found, few = [], min(8, nodes)
    for vocabulary, (kind, row) in track(
        list(product(vocabularies, KINDS.items())), "measuring", transient=True
    ):
        rows = torch.stack([row(vocabulary, seed) for seed in range(nodes)])
        for name, params in OPTIONS.items():
            node = Node(rows, params)
            defined = milliseconds(node.defined, few, repetitions)
            done = milliseconds(node.done, nodes, repetitions)
            found.append(Figure(vocabulary, kind, name, defined, done))
        found += [
            children(rows, kind, few, repetitions),
            checks(rows, kind, repetitions),
        ]
    return found


def children(rows: torch.Tensor, kind: str, nodes: int, repetitions: int) -> Figure:
    """Measure how long it takes to find the likeliest children of a draft node for the drafter."""
    params = SamplingParams(1.0, top_p=0.9)

    def defined(node: int) -> object:
        return warp(rows[node : node + 1], params).topk(CHILDREN)

    def done(node: int) -> object:
        return leading(rows[node : node + 1], params, CHILDREN)

    slow, fast = (milliseconds(each, nodes, repetitions) for each in (defined, done))
    return Figure(rows.shape[-1], kind, "the drafter's children, top-p .9", slow, fast)


def checks(rows: torch.Tensor, kind: str, repetitions: int) -> Figure:
    """Compare the times of two ways to check logits for NaN: two passes over all elements, or the
    maximum of all elements.
    """
    step = rows.repeat(-(-CHECKED // len(rows)), 1)[:CHECKED]
    twice = milliseconds(lambda _: (step.isnan().any(), step.isnan().any()), 1, repetitions)
    once = milliseconds(lambda _: step.amax().isnan(), 1, repetitions)
    return Figure(rows.shape[-1], kind, f"NaN in a step of {CHECKED} rows", twice, once, "step")


def table(found: Sequence[Figure], nodes: int) -> Table:
    """Format the results as a table."""
    headings = ("as defined\nms", "as done\nms", "times\nas fast", f"{nodes} nodes\nms")
    shown = Table("vocabulary", "logits", "options", *headings, box=None)
    for each in found:
        cells = f"{each.defined:.2f}", f"{each.done:.2f}", f"{each.defined / each.done:.1f}"
        total = f"{nodes * each.done:.1f}" if each.per == "node" else ""
        shown.add_row(f"{each.vocabulary:,}", each.logits, each.options, *cells, total)
    return shown


def main(
    vocabulary: Annotated[
        list[int] | None, typer.Option(help="vocabulary size in tokens; may be repeated")
    ] = None,
    sessions: Annotated[int, typer.Option(help="sessions of a step", min=1)] = 16,
    visited: Annotated[int, typer.Option(help="nodes of each session", min=1)] = 3,
    repetitions: Annotated[int, typer.Option(help="repetitions of every measurement", min=1)] = 5,
    file: report.JsonFile = None,
) -> None:
    """Measure how long it takes to draw tokens from a large vocabulary, with the reference
    implementation and with that of the services.
    """
    torch.set_num_threads(1)
    nodes = sessions * visited
    found = measure(vocabulary or [128_256, 151_936], nodes, repetitions)
    heading = f"per node, and {sessions} sessions x {visited} nodes; medians of {repetitions}"
    heading = f"{heading}: {described('one thread')}, float32"
    report.publish(heading, table(found, nodes), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
