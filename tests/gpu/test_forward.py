"""The forward pass on a CUDA device is right, exact, captured and bounded in memory."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

from tandem.benchmarks.figures.captured import replayed
from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cuda import attention
from tandem.engine.forward.cuda.batch_invariance import BASE
from tandem.engine.forward.cuda.graphs import CudaGraphs
from tandem.engine.model.load import load
from tandem.engine.runner import BY_ROWS, AttentionBackend, HFRunner
from tests.families import SERVED
from tests.services.test_quantised import PACKINGS, in_8_bits, packed
from tests.talks import SIZE, differing_rows, largest_difference, some_tokens, some_tree, talks

Family = Callable[[str], Path]
SESSIONS = 6
LONG = 500_000_000  # GPU cycles, about 0.3 s
POSITIONS = SESSIONS * SIZE
CUDA = torch.device("cuda")
# tolerance of logits of about 3; a mistake changes them by 1
HALVES = {"bfloat16": 0.2, "float16": 0.03}
ON_CUDA = (AttentionBackend.TILES, *BY_ROWS)
FUSED = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral_window",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
)


def forward_of(
    folder: Path, dtype: str, backend: AttentionBackend | None = None, exact: bool = True
) -> HFRunner:
    return HFRunner(load(folder, dtype, "cuda"), POSITIONS, exact, backend)


LAYERS = [
    *(
        LayerGeometry(3, size, size, repeat)
        for size, repeat in ((16, 1), (64, 4), (80, 8), (256, 1))
    ),
    LayerGeometry(2, 64, 32, 2),
    LayerGeometry(1, 128, 128, 71),
    LayerGeometry(2, 128, 128, 4, window=64),
    LayerGeometry(2, 96, 96, 2, fused=False),
    LayerGeometry(2, 64, 64, 8, fused=False, window=64),
]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_attend_as_is_defined(dtype: torch.dtype, layer: LayerGeometry) -> None:
    """The test covers several head sizes, a window, capped scores and sinks."""
    assert attention.why_unsupported([layer], dtype, CUDA) is None


@pytest.mark.parametrize("name", [*SERVED, "qwen2_window", "gemma2"])
def test_float32_is_what_plain_passes_give(name: str, family: Family) -> None:
    forward = forward_of(family(name), "float32")
    assert (forward.backend, forward.problem) == (AttentionBackend.GRAPHS, None)
    assert largest_difference(forward, random.Random(0)) <= 1e-3


@pytest.mark.parametrize("name", FUSED)
def test_programs_fuse_what_crosses_layers(name: str, family: Family) -> None:
    forward = forward_of(family(name), "bfloat16")
    print(f"{name}: {forward.kernels}, {forward.unfused}")
    assert forward.unfused is None


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", ON_CUDA)
@pytest.mark.parametrize("name", SERVED)
def test_rows_are_what_plain_passes_give(
    name: str, backend: AttentionBackend, dtype: str, family: Family
) -> None:
    forward = forward_of(family(name), dtype, backend)
    assert largest_difference(forward, random.Random(0)) <= HALVES[dtype]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SERVED)
def test_the_fastest_way_is_taken(name: str, dtype: str, family: Family) -> None:
    forward = forward_of(family(name), dtype)
    assert (forward.backend, forward.problem) == (AttentionBackend.GRAPHS, None)
    print(f"{name}, {dtype}: passes of {forward.sizes} rows agree")
    assert BASE in forward.sizes


@pytest.mark.parametrize("name", ["qwen2_window", "gemma2"])
def test_windows_and_caps_are_exact(name: str, family: Family) -> None:
    forward = forward_of(family(name), "bfloat16")
    assert (forward.backend, forward.problem) == (AttentionBackend.GRAPHS, None)
    assert largest_difference(forward, random.Random(0)) <= HALVES["bfloat16"]
    assert differing_rows(forward_of(family(name), "bfloat16"), random.Random(1)) == []


@pytest.mark.parametrize("method", ["fp8", "gptq"])
def test_weights_of_8_and_4_bits_stay_so_and_are_exact(
    method: str, family: Family, tmp_path: Path
) -> None:
    in_codes = in_8_bits if method == "fp8" else partial(packed, packing=PACKINGS[method])
    stored, _ = in_codes(family("llama"), tmp_path)
    forward = forward_of(stored, "bfloat16")
    assert forward.model.grouped and "Triton" in forward.model.kernels
    assert (forward.backend, forward.problem) == (AttentionBackend.GRAPHS, None)
    assert largest_difference(forward, random.Random(0)) <= HALVES["bfloat16"]
    assert differing_rows(forward, random.Random(1)) == []


def test_what_cannot_be_captured_is_launched(family: Family) -> None:
    """The model has gpt-oss experts, whose code looks at how many rows each expert has."""
    forward = forward_of(family("gpt_oss"), "float32")
    assert forward.backend is AttentionBackend.GRAPHS
    assert forward.problem and "cannot be captured" in forward.problem
    assert largest_difference(forward, random.Random(0)) <= 1e-3


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BY_ROWS)
@pytest.mark.parametrize("name", SERVED)
def test_a_row_is_the_same_alone_and_in_company(
    name: str, backend: AttentionBackend, dtype: str, family: Family
) -> None:
    """The logits agree bit for bit across cuts, in trees, and in passes of several sizes."""
    forward = forward_of(family(name), dtype, backend)
    assert differing_rows(forward, random.Random(1)) == []


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BY_ROWS)
def test_the_self_test_finds_passes_by_rows_exact(
    backend: AttentionBackend, dtype: str, family: Family
) -> None:
    assert str(self_test(forward_of(family("llama"), dtype, backend), "llama")) == "exact"


@pytest.mark.parametrize("exact", [True, False])
def test_a_replayed_pass_gives_what_an_eager_one_gives(exact: bool, family: Family) -> None:
    """Each replay has other sessions, so a graph that kept anything of the first pass would be
    noticed.
    """
    both = [forward_of(family("llama"), "bfloat16", backend, exact) for backend in BY_ROWS]
    pairs = list(zip(*(talks(forward, SESSIONS) for forward in both), strict=True))
    rng = random.Random(2)
    for _ in range(20):
        fed = []
        for number, (one, other) in enumerate(rng.sample(pairs, rng.randint(1, SESSIONS))):
            count = rng.choice([1, 3, 9])
            draft, parents = some_tokens(rng, count), some_tree(rng, count)
            head = some_tokens(rng, 1 + number)
            fed.append([talk.segment(head, draft, parents) for talk in (one, other)])
        eager, replayed = (
            forward(list(segments))
            for forward, segments in zip(both, zip(*fed, strict=True), strict=True)
        )
        for ours, theirs in zip(eager, replayed, strict=True):
            assert torch.equal(ours, theirs)
        for one, other in pairs:
            if len(one.text) < 200:
                more = some_tokens(rng, 5)
                assert torch.equal(one.say(both[0], more), other.say(both[1], more))


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_is_captured_while_serving(exact: bool, family: Family) -> None:
    """Neither the self-test nor trees capture anything, because all shapes were captured at
    start.
    """
    forward, rng = forward_of(family("llama"), "bfloat16", exact=exact), random.Random(4)
    runner = forward._runner
    assert isinstance(runner, CudaGraphs)
    captured = forward.capture_passes()
    known = dict(runner._captured)
    assert captured == len(known) and forward.problem is None
    assert largest_difference(forward, rng) <= HALVES["bfloat16"]
    assert runner._captured == known


def test_the_benchmark_times_captured_passes_of_every_size(family: Family) -> None:
    forward = forward_of(family("llama"), "bfloat16")
    forward.capture_passes()
    seconds = replayed(forward)
    assert sorted(seconds) == sorted(forward.sizes) and min(seconds.values()) > 0


def test_what_was_launched_can_be_awaited(family: Family) -> None:
    forward = forward_of(family("llama"), "bfloat16")
    (talk,) = talks(forward, 1)
    torch.cuda._sleep(LONG)
    forward([talk.segment((7,))])
    assert not torch.cuda.current_stream().query()
    forward.wait()
    assert torch.cuda.current_stream().query()


def test_memory_does_not_grow_with_steps(family: Family) -> None:
    """After each shape was used once, steps allocate no more memory."""
    forward, rng = forward_of(family("llama"), "bfloat16"), random.Random(3)
    sessions = talks(forward, SESSIONS)

    def steps() -> int:
        for nodes, count in product((0, 1, 16, 60), range(1, SESSIONS + 1)):
            drafts = [(some_tokens(rng, nodes), (-1,) * nodes) for _ in range(count)]
            forward([talk.segment((7,), *d) for talk, d in zip(sessions, drafts, strict=False)])
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    gc.collect()
    settled = steps()
    assert [steps() for _ in range(3)] == [settled] * 3
