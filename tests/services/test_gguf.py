"""GGUF files are served as they are stored, and exactly. The tests also cover the vocabularies and
tokenizers of GGUF files, and the words with which files are refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tandem import models
from tandem.drafter_service.tree.vocabulary import visible_tokens
from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.exactness import self_test
from tandem.engine.formats import gguf as reading
from tandem.engine.formats.blocks import READERS
from tandem.engine.formats.gguf_config import config_of
from tandem.engine.host import load_and_test
from tandem.engine.model import linears
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.engine.weights import network_bytes, weights_bytes
from tandem.models.gguf import convert
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import fingerprint, tokens_by_id
from tandem.protos.gguf import head, metadata
from tandem.protos.tokenizer import texts_of
from tests.ggufs import MakeGGUF, rewritten, with_random_blocks

POSITIONS = 2048
KINDS = ("f32", "f16", "q8_0", "q4_0", "q4_1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_exact_without_a_tokenizer_beside_it(kind: str, make_gguf: MakeGGUF) -> None:
    file = make_gguf(models.TARGET, kind)
    assert [each.suffix for each in file.parent.iterdir() if each.suffix != ".gguf"] == []
    runner, exactness = load_and_test(ModelServiceConfig(model=file, threads=1), True)
    assert str(exactness) == "exact"
    model = runner.model
    stored = "float32" if kind in ("f32", "f16") else f"float32, weights in {kind}"
    assert (model.kind, model.numbers) == ("LlamaForCausalLM", stored)
    assert (model.vocab_size, model.token_count, model.context_length) == (4096, 4096, 512)
    assert model.end_token_ids == (0,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_half_precision_pass_the_self_test(dtype: Any, make_gguf: MakeGGUF) -> None:
    config = ModelServiceConfig(model=make_gguf(models.DRAFT, "q8_0"), threads=1, dtype=dtype)
    assert load_and_test(config, True)[1].wrong is None


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_that_of_transformers(kind: str, make_gguf: MakeGGUF) -> None:
    """transformers dequantises the file and gets the same logits, up to the order of sums."""
    file = make_gguf(models.DRAFT, kind)
    text = torch.tensor([list(range(100, 140))])
    plain: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    top = head(file)
    config = config_of(file, top)
    network, missing = reading.read(file, top, config, torch.float32, grouped=True)
    assert not missing
    one, other = (each(text).logits for each in (plain, network))
    assert torch.allclose(one, other, atol=1e-3)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama with random weights whose rows are whole blocks of 256, as a float32 file."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("wide")
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=4096,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(models.DRAFT / "tokenizer.json", folder)
    convert(folder, folder / "wide.gguf", "f32")
    return folder / "wide.gguf"


@pytest.mark.parametrize("kind", READERS)
def test_a_file_of_any_quantised_type_is_exact(kind: str, wide: Path, tmp_path: Path) -> None:
    """In some files queries, keys and values have different types, and the embeddings are tied."""
    file = with_random_blocks(wide, tmp_path / f"{kind}.gguf", {"attn_v": "Q6_K"}, kind)
    model = load(file)
    assert model.numbers == f"float32, weights in {kind.lower()}"
    assert self_test(HFRunner(model, POSITIONS), kind).problem is None


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1"])
def test_weights_take_about_as_much_memory_as_the_file(kind: str, make_gguf: MakeGGUF) -> None:
    file = make_gguf(models.TARGET, kind)
    assert 0.9 * file.stat().st_size <= weights_bytes(load(file)) <= 1.3 * file.stat().st_size


def test_reading_never_holds_more_than_the_file_has(
    make_gguf: MakeGGUF, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that was read but not yet laid out is held as stored, and is freed once it is laid
    out.
    """
    file, held = make_gguf(models.TARGET, "q4_1"), list[int]()
    replaced = linears.replace

    def counted(network: Any, other: Any) -> None:
        held.append(network_bytes(network))
        replaced(network, other)
        held.append(network_bytes(network))

    monkeypatch.setattr(linears, "replace", counted)
    load(file)
    assert max(held) <= 1.3 * file.stat().st_size


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
    visible, same = (visible_tokens(texts_of(each, 4096)) for each in (file, models.DRAFT))
    assert torch.equal(visible, same)


def test_a_way_to_split_texts_that_is_not_known_needs_a_tokenizer_beside(
    make_gguf: MakeGGUF, tmp_path: Path
) -> None:
    content = make_gguf(models.DRAFT, "q4_0").read_bytes()
    file = tmp_path / "other.gguf"
    file.write_bytes(content.replace(b"gpt-2", b"other"))
    assert metadata(file)["tokenizer.ggml.pre"] == "other"
    with pytest.raises(Unusable, match=r"with the rules gpt2 'other'.*tokenizer.json beside it"):
        load_tokenizer(file)
    shutil.copy(models.FOREIGN / "tokenizer.json", tmp_path)
    with pytest.raises(Unusable, match=r"tokenizer.json is not the tokenizer of .*: token 0 is"):
        load_tokenizer(file)
    shutil.copy(models.DRAFT / "tokenizer.json", tmp_path)
    assert load_tokenizer(file).encode("a cat").ids


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"context_length": 513}, "context_length 513 is above 512, the longest context"),
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
        (whole[:-1000], "is cut off"),
        (whole.replace(b"blk.1.ffn_up.", b"blk.1.ffn_xx."), "has an unknown tensor"),
    ):
        file.write_bytes(content)
        with pytest.raises(Unusable, match=f"{file} .*{problem}"):
            load(file)


def test_frequencies_that_a_file_divides_are_divided(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """The frequencies are those of Llama 3.1 and later; the files have no other sign of the
    division.
    """
    file = make_gguf(models.DRAFT, "f32")
    plain = load(file).network.model.rotary_emb.inv_freq
    factors = torch.linspace(1, 8, len(plain))
    made = rewritten(file, tmp_path / "made.gguf", {"rope_freqs.weight": factors})
    assert torch.equal(load(made).network.model.rotary_emb.inv_freq, plain / factors)
