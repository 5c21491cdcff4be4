"""Run forward passes over many sessions, using the batch layout, the KV pool and the model.

The runner takes segments and returns logits. The runner does not depend on sessions, jobs, or what
the logits are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import torch

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.pool import KVPool
from tandem.engine.forward import attention, tiles
from tandem.engine.forward.cpu import panels, paths
from tandem.engine.forward.cuda import attention as attention_by_rows
from tandem.engine.forward.cuda.batch_invariance import invariant_sizes
from tandem.engine.forward.cuda.graphs import CudaGraphs, Run
from tandem.engine.forward.cuda.rows import KVLayout, RowPlan, block_rows
from tandem.engine.forward.cuda.table import (
    SIZES,
    RowTable,
    padding_passes,
    row_plans,
    rows_plan,
)
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel
from tandem.engine.program.program import Program
from tandem.engine.program.proof import proved_program
from tandem.engine.program.tape import Unrecordable
from tandem.protos.errors import Unusable


class AttentionBackend(StrEnum):
    """How a step computes attention."""

    PATHS = "paths"  # each row attends along its tree path; compiled kernels on a CPU
    TILES = "tiles"  # tiles of several rows, one after another; on any device
    ROWS = "rows"  # all rows at once; on CUDA
    GRAPHS = "graphs"  # like ROWS, but replayed as a CUDA graph


BY_ROWS = (AttentionBackend.ROWS, AttentionBackend.GRAPHS)


class HFRunner:
    """Runs a model. The KV cache holds `positions` tokens, or more if `footprint` allows it.

    With `exact`, logits are bitwise batch-invariant, provided that the model and the backend allow
    it. The backend `tiles` is never batch-invariant. If `backend` is None, the fastest usable
    backend is chosen. If `program`, backends other than `tiles` run a recorded program of the
    network. If there is no such program, `unfused` gives the reason. Raises Unusable if the given
    backend cannot be used, and MemoryError or OutOfMemoryError if there is too little memory.
    """

    def __init__(
        self,
        model: HFModel,
        positions: int,
        exact: bool = True,
        backend: AttentionBackend | None = None,
        program: bool = True,
        footprint: Footprint | None = None,
        pool: Callable[..., KVPool] = KVPool,
    ) -> None:
        self.model = model
        self.exact = exact
        rows = backend in BY_ROWS or (backend is None and model.device.type == "cuda")
        try:
            self.pool = pool(
                *(model.layers, positions, model.dtype, model.device),
                padding=PAGE * rows,
                footprint=footprint or Footprint(),
            )
        except RuntimeError as error:  # torch raises this if memory is short
            raise MemoryError(str(error)) from error
        width = -(-min(self.pool.positions, model.context_length) // PAGE)
        rows_at_once = block_rows(max(layer.repeat for layer in model.layers), model.dtype)
        self._layout = KVLayout(self.pool.positions, width, rows_at_once)
        self.backend = AttentionBackend.TILES
        self._problem: str | None = None
        # does not refer to `self`, so that memory is freed once `self` is unused
        self._plain = partial(_run, model, self.pool)
        self._run: Callable[[Any], torch.Tensor] = self._plain
        self._program: Program | None = None
        self.unfused: str | None = "switched off"
        self._runner: Run = partial(_launch, self._run, model.device)
        self.sizes: Sequence[int] = SIZES  # row counts that a pass may have
        if rows:
            self._choose(backend, program)
        elif backend is not AttentionBackend.TILES:
            problem = panels.why_unsupported(model.dtype, model.device)
            if problem and backend:
                raise Unusable(f"the model cannot use the backend paths: {problem}")
            self.backend = AttentionBackend.TILES if problem else AttentionBackend.PATHS
            self._problem = f"compiled kernels: {problem}" if problem else None
        if program and self.backend is AttentionBackend.PATHS:
            self.fuse()
        self.exact = exact and self.backend is not AttentionBackend.TILES

    @property
    def problem(self) -> str | None:
        """The reason why the runner is slower than necessary on its device, or None."""
        return self._runner.problem if isinstance(self._runner, CudaGraphs) else self._problem

    @property
    def lost(self) -> str | None:
        """Return None, because a single process can always run more passes."""
        return None

    @property
    def kernels(self) -> str:
        """Names the weight kernels, and tells how much of a pass runs without Python."""
        if self._program:
            return "{}, fused {} of {}".format(self.model.kernels, *self._program.fused)
        by_tiles = self.backend is AttentionBackend.TILES
        return self.model.kernels if by_tiles else f"{self.model.kernels}, not fused"

    @property
    def batch_variant(self) -> str | None:
        """The library whose rounding of a row depends on the number of rows in a pass, or None."""
        return "PyTorch" if self.backend is AttentionBackend.TILES else None

    def give_up_exactness(self) -> bool:
        """Switch off exact mode, which is slower; return whether this changes later passes."""
        before, self.exact, self.sizes = self.sizes, False, SIZES
        return before is not SIZES

    def fuse(self) -> None:
        """Try to record a program that is equivalent to the network, and run it in later passes."""
        model, self._run, self.unfused = self.model, self._plain, None
        sizes, self._program = (model.context_length, model.vocab_size), None
        by_rows = self.backend in BY_ROWS
        plan_of = partial(_whole_plan, self._layout, model.device) if by_rows else paths.path_plan
        try:
            found = proved_program(model.network, self._plain, self.pool, *sizes, plan_of)
            self._run = self._program = found
        except Unrecordable as error:
            self.unfused = str(error)
        except Exception as error:  # a network may raise any error
            self.unfused = f"{type(error).__name__}: {error}"
        self._runner = partial(_launch, self._run, model.device)

    @torch.inference_mode()
    def capture_passes(self) -> int:
        """Capture CUDA graphs of all pass shapes in advance, so that none is captured while
        serving. Returns the number of captured graphs. Raises OutOfMemoryError.
        """
        if not isinstance(self._runner, CudaGraphs):
            return 0
        return self._runner.capture_all(padding_passes(self._layout, self.exact, self.sizes))

    @torch.inference_mode()
    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Run all segments in one step. Returns float32 logits per segment, [num_logits, vocab].

        If the model overflows, the logits are NaN, and so are the keys and values that the pass
        wrote. Other sessions must not reuse the pages with NaN values.
        """
        for segment in segments:
            end = segment.context + len(segment.parents)
            self.pool.prepare(segment.table, segment.context, end)
        by_rows = self.backend in BY_ROWS
        logits = self._by_rows(segments) if by_rows else self._at_once(segments)
        return list(logits.split([segment.num_logits for segment in segments]))

    def wait(self) -> None:
        """Wait until a CUDA device has finished all passes that were launched."""
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()

    def _at_once(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Run one pass over all segments with backend `paths` or `tiles`; return the logits."""
        by_paths, device = self.backend is AttentionBackend.PATHS, self.model.device
        step = paths.path_plan(segments) if by_paths else tiles.tile_plan(segments, device)
        return self._run(step)[: sum(segment.num_logits for segment in segments)].float()

    def _by_rows(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Run all segments in passes of the backend `rows` or `graphs`; return the logits."""
        passes = row_plans(segments, self._layout, self.exact, self.sizes)
        found = (self._runner(rows)[: rows.num_logits] for rows in passes)
        logits = [each.to(torch.float32, copy=True) for each in found]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    @torch.inference_mode()
    def _choose(self, backend: AttentionBackend | None, program: bool) -> None:
        """Switch to backend `rows` or `graphs` if possible. If `program`, also record a program."""
        self._problem = self._row_problem(backend)
        if self._problem and backend:
            raise Unusable(f"the model cannot use the backend {backend}: {self._problem}")
        if self._problem:
            return
        self.backend = backend or AttentionBackend.GRAPHS
        if program:
            self.fuse()
        if self.backend is AttentionBackend.GRAPHS:
            self._runner = CudaGraphs(self._run, self.model.device)
        if self.exact:
            longest, vocabulary = self.model.context_length, self.model.vocab_size
            self.sizes = invariant_sizes(self._runner, self.pool, self._layout, longest, vocabulary)

    def _row_problem(self, backend: AttentionBackend | None) -> str | None:
        """Return why the backend `rows` or `graphs` is unusable, or None. Runs a trial pass."""
        model = self.model
        if backend is not AttentionBackend.ROWS and model.device.type != "cuda":
            return f"CUDA graphs need a CUDA device, not {model.device}"
        if problem := attention_by_rows.why_unsupported(model.layers, model.dtype, model.device):
            return problem
        (padding,) = row_plans((), self._layout, exact=False)
        try:
            self._runner(padding)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, Unusable) as error:
            return str(error).splitlines()[0]
        return None


def _whole_plan(layout: KVLayout, device: torch.device, segments: Sequence[Segment]) -> RowPlan:
    """Plan a pass for the backend `rows` over exactly the fed rows, without padding."""
    table = RowTable.of(segments, layout)
    return rows_plan(table, layout, table.num_logits).to(device)


def _launch(
    run: Callable[[RowPlan], torch.Tensor], device: torch.device, rows: RowPlan
) -> torch.Tensor:
    """Run a forward pass directly, without a CUDA graph."""
    return run(rows.to(device))


def _run(
    model: HFModel, pool: KVPool, step: tiles.TilePlan | paths.PathPlan | RowPlan
) -> torch.Tensor:
    """Run the model on a planned step; return the logits of the requested rows, [rows, vocab]."""
    with attention.in_step(attention.AttentionStep(step, pool, model.context_length)):
        logits: torch.Tensor = model.network(
            input_ids=step.token_ids,
            position_ids=step.positions,
            attention_mask=None,
            use_cache=False,
            logits_to_keep=step.logits_rows,
        ).logits[0]
    return logits
