"""Measure how long the drafter takes to grow its tree by one level. For comparison, also measure a
step of `generate()` with the same model, and the time in which one thread reads the weights once.

The tree is grown after random tokens, because an uncertain drafter grows wide trees. The measured
time of a level includes the layout of its nodes, their forward pass, the choice of their children,
and the sending of new proposals. There is no transport and no model thread. All times are processor
time of one thread.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.figures.steps import reading, weights_read
from tandem.drafter_service.tree.expansion import expander
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.pending import chain_segment
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.engine.cache.sessions import Sessions
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.engine.schedule.batch import StepCosts
from tandem.engine.schedule.job_stream import JobStream
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.types import Context, DraftShape, SamplingParams

LENGTH = 256  # number of tokens in the text
SIZES = (1, 4, 16)  # nodes per level
SHAPE = DraftShape(levels=32, branches=4, nodes=64)
STEPS = 16  # steps of generate()
TEMPERATURES = (0.0, 0.7)
WARM_UP_TURNS = 5  # turns at the start that are not counted
MAX_TRIES = 20  # give up if none of this many trees is wide enough
NAME = b"levels"

Action = Callable[[], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """The time of a level or of another action in milliseconds. `forward` is the part that the
    forward pass of a level takes.
    """

    name: str
    nodes: int
    milliseconds: float
    forward: float


class Drafter:
    """A draft model that has processed a text, after which it can begin any number of trees. Each
    tree has its own seed, because the sampling noise of a seed is cached.
    """

    def __init__(self, forward: HFRunner, text: tuple[int, ...], temperature: float) -> None:
        self._forward = forward
        self._temperature = temperature
        self._seeds = count()
        self._context = Context(NAME, 1, 0, text)
        self._sessions = Sessions(
            forward.pool, forward.model.context_length, 1, lambda: 1, 60.0, time.monotonic
        )
        with self._sessions.acquire(self._context, 0) as self._session:
            (self._root_logits,) = forward([chain_segment(self._session, text)])
            self._sessions.keep(self._session, self._context, ())

    def wide_tree(self, nodes: int) -> tuple[SessionText, GrowingTree]:
        """Grow a tree until it has `nodes` nodes to feed in one pass. Raises Unusable if MAX_TRIES
        trees are too narrow.
        """
        for _ in range(MAX_TRIES):
            text, growing = self._begin()
            while 1 + len(list(growing.chances())) < nodes and growing.ready():
                growing.take(self._forward([growing.segment(0)])[0])
            if 1 + len(list(growing.chances())) >= nodes and growing.ready():
                return text, growing
        raise Unusable(f"no level of the test tree has {nodes} nodes: the model is too confident")

    def _begin(self) -> tuple[SessionText, GrowingTree]:
        """Begin a tree whose root has been fed."""
        params = SamplingParams(self._temperature, seed=next(self._seeds))
        worth = Worth(Conditions(), StepCosts(), DrafterHistory(), 0.0)
        growth = TokenTree(SHAPE, LENGTH, self._sessions.context_length, 1, worth)
        tokens = self._forward.model.token_count
        opening = Drafting(self._context, params, SHAPE)
        text = SessionText(self._sessions, self._session, opening, growth, Vocabulary(tokens))
        proposal = expander(SHAPE, params, LENGTH, torch.ones(tokens))
        stream = JobStream[CommitTokens, Proposal](deque(), 1, 1)
        return text, GrowingTree(
            text, proposal, stream, worth, time.perf_counter, self._root_logits
        )

    def level(self, nodes: int) -> tuple[float, float]:
        """Return the CPU seconds of one level of the tree, and of its forward pass alone."""
        text, growing = self.wide_tree(nodes)
        job = text.feed(growing)
        step_input = next(job)
        began = time.thread_time()
        segment = step_input.segment(nodes - 1)
        passing = time.thread_time()
        (logits,) = self._forward([segment])
        passed = time.thread_time()
        try:
            job.send(logits)
        except StopIteration as fed:
            growing.take(fed.value)
        step_input.ready()
        seconds = time.thread_time() - began
        assert len(segment.tokens) == nodes and text.tree.fed >= nodes
        return seconds, passed - passing


@torch.inference_mode()
def measure(folder: Path, repetitions: int) -> dict[tuple[str, int], Row]:
    """Run all actions in turns, and return the median milliseconds of each, keyed by the name of
    the action and the number of nodes. Raises Unusable.
    """
    model = load(folder, "float32")
    network: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    rng = random.Random(0)
    text = tuple(rng.randrange(model.token_count) for _ in range(LENGTH))
    read = reading(weights_read(network))
    actions: dict[tuple[str, int], Action] = {
        ("reading the weights", 0): lambda: (spent(read), 0.0),
        ("generate()", 0): lambda: (generated(network, text), 0.0),
    }
    for temperature in TEMPERATURES:
        forward = HFRunner(model, 2 * model.context_length, exact=False)
        drafter = Drafter(forward, text, temperature)
        what = f"level, T {temperature:g}"
        actions |= {(what, nodes): partial(drafter.level, nodes) for nodes in SIZES}
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {each: [] for each in actions}
    order = list(actions)
    for turn in track(range(WARM_UP_TURNS + repetitions), "measuring", transient=True):
        rng.shuffle(order)
        for name in order:
            took = actions[name]()
            if turn >= WARM_UP_TURNS:
                seconds[name].append(took)
    return {
        name: Row(*name, *(1e3 * median(each) for each in zip(*took, strict=True)))
        for name, took in seconds.items()
    }


def spent(action: Callable[[], object]) -> float:
    """Return the seconds of processor time that an action takes in this thread."""
    began = time.thread_time()
    action()
    return time.thread_time() - began


def generated(network: Any, text: tuple[int, ...]) -> float:
    """Return the processor seconds of one step of generate(), without the prompt."""
    ids = torch.tensor([text])
    least = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}

    def run(steps: int) -> None:
        network.generate(ids, min_new_tokens=steps, max_new_tokens=steps, **least)

    return (spent(lambda: run(1 + STEPS)) - spent(lambda: run(1))) / STEPS


def table(rows: Iterable[Row]) -> Table:
    """Return the results as a table to print."""
    shown = Table("", "nodes", "ms", "of it the pass", "the rest", box=None)
    for row in rows:
        cells = (str(row.nodes), f"{row.milliseconds:.2f}")
        parts = (f"{row.forward:.2f}", f"{row.milliseconds - row.forward:.2f}")
        shown.add_row(row.name, *cells if row.nodes else ("", cells[1]), *parts * (row.nodes > 0))
    return shown


def main(
    model: Annotated[Path, typer.Argument(help="model directory")] = models.DRAFT,
    repetitions: Annotated[int, typer.Option(help="repetitions of every measurement", min=1)] = 101,
    file: report.JsonFile = None,
) -> None:
    """Measure the milliseconds of a level of the drafter's tree and of a step of generate()."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    try:
        found = measure(model, repetitions)
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = f"{model.name}, float32, behind {LENGTH} tokens; medians of {repetitions}"
    heading = f"{heading}: {described('one thread')}"
    report.publish(heading, table(found.values()), [asdict(row) for row in found.values()], file)


if __name__ == "__main__":
    typer.run(main)
