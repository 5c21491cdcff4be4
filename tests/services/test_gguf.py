"""GGUF files: their vocabularies, what is refused in which words, what the self-test notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem import models
from tandem.drafter_service.visible import visible_tokens
from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.segment import Segment
from tandem.engine.gguf import llama
from tandem.engine.gguf.llama import LlamaContext
from tandem.engine.gguf.model import GGUFModel, load
from tandem.engine.gguf.runner import GGUFRunner
from tandem.engine.host import load_and_test
from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import fingerprint, tokens_by_id
from tandem.protos.gguf import metadata
from tests.ggufs import Alone, MakeGGUF, needs_llama

pytestmark = needs_llama
POSITIONS = 2048


def running(model: GGUFModel) -> GGUFRunner:
    """With space for a self-test."""
    return GGUFRunner(model, model.context(POSITIONS), POSITIONS)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("f32", "float32"), ("q8_0", "float16"), ("q4_0", "bfloat16"), ("q4_0", "auto")],
)
def test_the_self_test_passes_and_never_calls_it_exact(
    kind: str, dtype: Any, make_gguf: MakeGGUF
) -> None:
    file = make_gguf(models.TARGET, kind)
    config = ModelServiceConfig(model=file, dtype=dtype, threads=1)
    runner, exactness = load_and_test(config, True)
    assert str(exactness) == "exact unavailable: llama.cpp rounds by the number of rows"
    model = runner.model
    assert (model.kind, model.numbers, model.kernels) == ("llama", kind, "llama.cpp")
    assert (model.vocab_size, model.token_count, model.context_length) == (4096, 4096, 512)
    assert model.end_token_ids == (0,)


def stale(patch: pytest.MonkeyPatch) -> None:
    """What was rolled back stays."""

    def remove(self: LlamaContext, sequence: int, start: int) -> None:
        if start == 0:
            self._lib.llama_memory_seq_rm(self._memory, sequence, 0, -1)

    patch.setattr(LlamaContext, "remove", remove)


def holed(patch: pytest.MonkeyPatch) -> None:
    """A fork lacks some tokens of its text."""
    copy = LlamaContext.copy

    def forked(self: LlamaContext, source: int, target: int, stop: int) -> None:
        copy(self, source, target, stop)
        self._lib.llama_memory_seq_rm(self._memory, target, stop - 9, stop - 1)

    patch.setattr(LlamaContext, "copy", forked)


def shifted(patch: pytest.MonkeyPatch) -> None:
    """A text has other tokens behind the 200th."""
    decode = LlamaContext.decode

    def other(self: LlamaContext, rows: Any) -> Any:
        for row in rows:
            row.token = (row.token + (row.position > 200)) % 4096
        return decode(self, rows)

    patch.setattr(LlamaContext, "decode", other)


@pytest.mark.parametrize("fault", [stale, holed, shifted])
def test_a_planted_fault_is_refused(
    fault: Callable[[pytest.MonkeyPatch], None],
    make_gguf: MakeGGUF,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where rounding explains most: in weights of 8 bits."""
    runner = running(load(make_gguf(models.DRAFT, "q8_0"), "auto"))
    fault(monkeypatch)
    with pytest.raises(Unusable, match=r": (the logits of llama differ|llama fail)"):
        self_test(runner, "planted")


def test_a_files_own_tokenizer_is_the_one_that_it_was_made_from(
    make_gguf: MakeGGUF, prompts: list[tuple[int, ...]]
) -> None:
    file = make_gguf(models.DRAFT, "q4_0")
    assert tokens_by_id(file) == tokens_by_id(models.DRAFT)
    assert fingerprint(file) == fingerprint(models.TARGET)
    own, original = load_tokenizer(file), load_tokenizer(models.DRAFT)
    texts = [original.decode(list(prompt)) for prompt in prompts]
    for text in [*texts, "<|endoftext|> don't\n\n  Zoë's 12345 ☃ cats!", " a"]:
        assert own.encode(text).ids == original.encode(text).ids
        assert own.decode(own.encode(text).ids) == text.replace("<|endoftext|>", "")
    assert torch.equal(visible_tokens(file, 4096), visible_tokens(models.DRAFT, 4096))


def test_a_tokenizer_beside_the_file_must_be_its_own(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    file = Path(shutil.copy(make_gguf(models.DRAFT, "q4_0"), tmp_path))
    shutil.copy(models.FOREIGN / "tokenizer.json", tmp_path)
    with pytest.raises(Unusable, match=r"tokenizer.json is not that of .*: token 0 is"):
        load_tokenizer(file)
    shutil.copy(models.DRAFT / "tokenizer.json", tmp_path)
    assert load_tokenizer(file).encode("a cat").ids


def test_another_way_to_split_texts_needs_a_tokenizer_beside(
    make_gguf: MakeGGUF, tmp_path: Path
) -> None:
    content = make_gguf(models.DRAFT, "q4_0").read_bytes()
    file = tmp_path / "other.gguf"
    file.write_bytes(content.replace(b"gpt-2", b"qwen2"))
    assert metadata(file)["tokenizer.ggml.pre"] == "qwen2"
    with pytest.raises(Unusable, match=r"splits texts as gpt2 'qwen2'.*tokenizer.json beside it"):
        load_tokenizer(file)
    assert int(visible_tokens(file, 4096).sum()) > 3000, "a drafter needs no way to split texts"
    shutil.copy(models.DRAFT / "tokenizer.json", tmp_path)
    assert load_tokenizer(file).encode("a cat").ids


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "cuda"}, "device cuda does not apply to .*: GGUF models run on the CPU"),
        ({"weights": "int8"}, "weights int8 does not apply to .*: it has its own, as stored"),
        ({"context_length": 513}, "context_length 513 is above .* trusted with, 512"),
        ({"kv_bytes": 1000}, "kv_bytes 1000B is less than one session needs"),
    ],
)
def test_what_does_not_apply_is_refused_by_name(
    options: dict[str, Any], problem: str, make_gguf: MakeGGUF
) -> None:
    config = ModelServiceConfig(model=make_gguf(models.DRAFT, "q4_0"), threads=1, **options)
    with pytest.raises(Unusable, match=problem):
        load_and_test(config, False)


def test_what_is_no_whole_gguf_file_is_refused(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    file, whole = tmp_path / "model.gguf", make_gguf(models.DRAFT, "q4_0").read_bytes()
    with pytest.raises(Unusable, match=f"{file} is not there"):
        load(file)
    for content, problem in (
        (b"PK", "is not a GGUF"),
        (whole[:-1000], "cannot be loaded by llama"),
    ):
        file.write_bytes(content)
        with pytest.raises(Unusable, match=f"{file} {problem}"):
            load(file)


def test_without_the_library_the_line_says_what_to_install(
    make_gguf: MakeGGUF, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(llama, "import_module", absent)
    with pytest.raises(Unusable, match=r"pip install 'tandem-serving\[gguf\]'"):
        load(make_gguf(models.DRAFT, "q4_0"))


def test_more_rows_than_a_batch_are_fed_in_several(make_gguf: MakeGGUF) -> None:
    runner = running(load(make_gguf(models.DRAFT, "f32")))
    tables = [runner.pool.allocate(400) for _ in range(3)]
    said = [(table, tuple(range(100, 500))) for table in tables if table]
    segments = [
        Segment(table, 0, (*text, 7, 8, 9), (*range(-1, 399), 399, 399, 400), 3)
        for table, text in said
    ]
    whole = runner(segments)
    for segment, rows in zip(segments, whole, strict=True):
        (alone,) = runner([segment])
        assert torch.allclose(rows, alone, atol=1e-3)


def test_a_text_that_overflows_harms_nobody_else(tmp_path: Path) -> None:
    """In a cache that all share, where masked keys are multiplied by zero: NaN would spread."""
    from tandem.models.gguf import convert

    bad = 999
    shutil.copytree(models.DRAFT, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    embedded = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embedded.clone()
    embedded[bad] = torch.inf
    save_file(weights, file)
    convert(tmp_path / "model", tmp_path / "model.gguf", "f32")
    model = load(tmp_path / "model.gguf")
    runner, alone = GGUFRunner(model, model.context(POSITIONS), POSITIONS), Alone(model, POSITIONS)
    one, other = (runner.pool.allocate(100) for _ in range(2))
    assert one and other
    text = tuple(range(100, 140))
    runner([Segment(table, 0, text, tree.chain(40), 1) for table in (one, other)])
    lost, kept = runner(
        [Segment(table, 40, (token, 7), (-1, -1), 2) for table, token in ((one, bad), (other, 5))]
    )
    assert bool(lost.isnan().all()) and not runner.pool.finite(one, 40)
    assert runner.pool.finite(other, 40)
    expected = [alone.whole((*text, token))[-1] for token in (5, 7)]
    assert torch.allclose(kept, torch.from_numpy(np.stack(expected)), atol=1e-3)
    runner.pool.wipe(one)
    runner.pool.compact(other, 40, [1])
    again, on = runner(
        [Segment(one, 0, text, tree.chain(40), 1), Segment(other, 41, (8,), (-1,), 1)]
    )
    for rows, said in ((again, text), (on, (*text, 7, 8))):
        assert torch.allclose(rows[-1], torch.from_numpy(alone.whole(said)[-1]), atol=1e-3)
