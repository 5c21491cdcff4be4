"""The self-test refuses a model that is computed wrongly, unless rounding hides the mistake, and
none that is computed rightly.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem import models
from tandem.benchmarks.figures.emulation import emulated
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.cuda.graphs import CudaGraphs
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos.errors import Unusable
from tests.families import ARCHITECTURES, CONFIGS
from tests.ggufs import MakeGGUF
from tests.services import faults, replay
from tests.services.faults import FAULTS, Fault
from tests.services.plant import Plant

MakeModel = Callable[[str, int], Path]
MakeBiased = Callable[[str], Path]
POSITIONS = 2048
DTYPES = ("float32", "bfloat16", "float16")
HALF = ("llama", "gpt_neox", "gemma2", "mixtral", "olmoe", "qwen3_moe")
SERVED = [  # float32 is covered by test_architectures.py
    *((name, dtype) for name in HALF for dtype in ("bfloat16", "float16")),
    *(
        pytest.param(name, "bfloat16", marks=pytest.mark.long("the same with every family"))
        for name in ARCHITECTURES
        if name not in HALF
    ),
]
WAYS = (
    *(("llama", way) for way in ("paths", "tiles", "rows")),
    *(("qwen2_window", way) for way in ("paths", "tiles")),
)
GROSS = (
    faults.swapped_layers,
    faults.swapped_gates,
    faults.a_neighbours_keys,
    faults.a_forgotten_window,
)  # faults that move logits farther than bfloat16 rounds them
FINE = faults.a_wrong_rope_row  # changes one token of 304; float16 rounding moves logits farther


@pytest.fixture(scope="module")
def make_biased(tmp_path_factory: pytest.TempPathFactory) -> MakeBiased:
    """Return a function that makes a tiny random model directory of a family, with biases that are
    not zero.
    """
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            torch.manual_seed(0)
            config = CONFIGS[family]()
            config.attention_bias = True
            network = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    if parameter.ndim >= 2:
                        parameter.mul_(4.0)
                    elif name.endswith("bias"):
                        parameter.normal_(0.0, 0.5)
            folder = made[family] = tmp_path_factory.mktemp(f"{family}-biased-", numbered=True)
            network.save_pretrained(folder)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(models.TARGET / name, folder)
        return made[family]

    return make


@pytest.fixture(autouse=True)
def _operator() -> Iterator[None]:
    """Replace the attention of a device, for passes by rows."""
    with emulated():
        yield


def right(folder: Path, way: str, dtype: str, patch: pytest.MonkeyPatch) -> HFRunner:
    """Return a forward pass without a mistake: along paths, by tiles, or as on a device."""
    if way == "paths" and kernels() is None:
        pytest.skip("the kernels were not built")
    if way in ("rows", "replayed"):
        replay.emulate(patch)
    backend = {
        "paths": AttentionBackend.PATHS,
        "rows": AttentionBackend.ROWS,
        "replayed": AttentionBackend.ROWS,
    }
    forward = HFRunner(
        load(folder, dtype), POSITIONS, backend=backend.get(way, AttentionBackend.TILES)
    )
    if way == "replayed":
        forward._runner = CudaGraphs(forward._run, forward.model.device, replay.capture)
    return forward


def refuse(fault: Fault, folder: Path, forward: HFRunner, patch: pytest.MonkeyPatch) -> None:
    """Plant a fault, and check that the self-test notices it, also in programs that were made
    before or after the fault.
    """
    fault(Plant(patch, forward, folder))
    if forward.unfused is None and fault is not faults.a_key_that_is_not_written:
        replayed = isinstance(forward._runner, CudaGraphs)
        forward.fuse()
        if replayed:
            forward._runner = CudaGraphs(forward._run, forward.model.device, replay.capture)
    with pytest.raises(Unusable, match=r"ForCausalLM differ by .*; rounding explains .*; self"):
        self_test(forward, "planted")


@pytest.mark.parametrize(("family", "way"), WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(
    fault: Fault, family: str, way: str, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased(family)
    refuse(fault, folder, right(folder, way, "float32", monkeypatch), monkeypatch)


@pytest.mark.parametrize("way", ["paths", "tiles"])
def test_a_forgotten_window_is_refused(
    way: str, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased("qwen2_window")
    forward = right(folder, way, "float32", monkeypatch)
    refuse(faults.a_forgotten_window, folder, forward, monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replay_with_stale_geometry_is_refused(
    dtype: str, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased("llama")
    forward = right(folder, "replayed", dtype, monkeypatch)
    refuse(faults.a_replay_with_stale_geometry, folder, forward, monkeypatch)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault is not FINE])
def test_a_planted_fault_is_refused_in_float16(
    fault: Fault, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased("llama")
    refuse(fault, folder, right(folder, "tiles", "float16", monkeypatch), monkeypatch)


@pytest.mark.parametrize("fault", GROSS)
def test_a_planted_fault_that_is_larger_than_rounding_is_refused_in_bfloat16(
    fault: Fault, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased("qwen2_window")
    refuse(fault, folder, right(folder, "tiles", "bfloat16", monkeypatch), monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "way"), [*WAYS, ("llama", "replayed")])
def test_without_a_fault_nothing_is_refused(
    family: str, way: str, dtype: str, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    self_test(right(make_biased(family), way, dtype, monkeypatch), family)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen3_moe"])
def test_a_mixture_of_experts_that_is_computed_wrongly_is_refused_in_half_precision(
    family: str, dtype: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may send some tokens to other experts."""
    folder = make_model(family, 0)
    forward = right(folder, "tiles", dtype, monkeypatch)
    refuse(faults.a_neighbours_keys, folder, forward, monkeypatch)


@pytest.mark.parametrize(("architecture", "dtype"), SERVED)
def test_no_served_architecture_is_refused(
    architecture: str, dtype: str, make_model: MakeModel
) -> None:
    """Each architecture passes in exact mode, or in the fast mode that the service falls back
    to.
    """
    forward = HFRunner(load(make_model(architecture, 0), dtype), POSITIONS)
    if self_test(forward, architecture).problem:
        forward.give_up_exactness()
        self_test(forward, architecture)


@pytest.mark.parametrize("family", ["llama", "qwen2_window", "mixtral", "gpt2"])
def test_weights_rounded_to_8_bits_are_exact(family: str, make_model: MakeModel) -> None:
    """The reference uses the same rounded weights."""
    forward = HFRunner(load(make_model(family, 0), weights="int8"), POSITIONS)
    assert self_test(forward, family).problem is None


@pytest.mark.parametrize(
    "fault",
    [
        faults.swapped_layers,
        faults.a_neighbours_keys,
        faults.a_wrong_rope_row,
        faults.a_scale_of_97_percent_in_a_group,
    ],
)
def test_a_planted_fault_is_refused_with_weights_of_8_bits(
    fault: Fault, make_biased: MakeBiased, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_biased("qwen2_window")
    forward = HFRunner(load(folder, weights="int8"), POSITIONS, exact=False)
    refuse(fault, folder, forward, monkeypatch)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_another_scale_in_a_group_of_weights_is_refused(
    kind: str, make_gguf: MakeGGUF, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_gguf(models.DRAFT, kind)
    forward = HFRunner(load(file), POSITIONS)
    refuse(faults.a_scale_of_97_percent_in_a_group, file, forward, monkeypatch)
