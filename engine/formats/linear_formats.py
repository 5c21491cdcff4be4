"""Read the formats in which checkpoints store linear layers in 8 or 4 bits: GPTQ, AWQ,
compressed-tensors, and FP8.

As far as possible, the names and shapes of a layer's tensors decide how the tensors are read,
because the configuration may not apply to every layer. Activations are not quantised, even where a
checkpoint specifies how to quantise them. The message of an Unusable error continues a sentence
that begins with the name of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from tandem.engine.formats.stored_linears import StoredLinear, unpacked
from tandem.engine.forward.groups import Code
from tandem.protos.errors import Unusable

# the tensors of a layer, by their names in the layer
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Block: TypeAlias = tuple[int, int] | None  # numbers of outputs and inputs that share a scale
# a function that makes a stored layer from its tensors and the number of its inputs
Format: TypeAlias = Callable[[Tensors, int], StoredLinear]
BITS = {Code.NIBBLES: 4, Code.BYTES: 8}
# names of tensors with scales; each quantised layer has one of them
SCALES = {"scales", "weight_scale", "weight_scale_inv"}
SIGN = 128  # xor with this bit turns unsigned codes of 8 bits into signed ones, and back
# the index of each output's 4-bit field in an AWQ word, which holds 8 outputs
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def _code(bits: float) -> Code:
    """Return the kind of codes that have this number of bits. Raises Unusable if the number of bits
    is neither 4 nor 8.
    """
    found = next((code for code, each in BITS.items() if each == bits), None)
    if found is None:
        raise Unusable(f"has weights of {bits:g} bits, but only 4 and 8 bits are supported")
    return found


def words_of(words: torch.Tensor, code: Code) -> torch.Tensor:
    """Unpack the codes in 32-bit words [..., n], lowest bits first, into a byte for each code:
    [..., n * 32 / bits].
    """
    return unpacked(words.contiguous().view(torch.uint8), code)


def _of_words(
    code: Code,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group_of: torch.Tensor | None,
) -> StoredLinear:
    """Return a layer whose codes are stored in words [out, n]. Each word holds the codes of
    neighbouring inputs. The codes and zeros are unsigned.
    """
    codes, shift = words.contiguous().view(torch.uint8), 0
    if code is Code.BYTES:
        codes, shift = codes ^ SIGN, SIGN
    groups = _in_order(group_of, scales.shape[1])
    return StoredLinear(code, codes, scales.contiguous(), zeros.int() - shift, groups)


def _in_order(group_of: torch.Tensor | None, groups: int) -> torch.Tensor | None:
    """Return the index of each input's group, or None if the groups are consecutive runs of equal
    length.
    """
    if group_of is None or bool((group_of < 0).any()):
        return None
    expected = torch.arange(len(group_of)) // max(1, len(group_of) // groups)
    return None if torch.equal(group_of.long(), expected) else group_of.long()


def gptq(tensors: Tensors, inputs: int, first: int) -> StoredLinear:
    """Read a GPTQ layer. The codes are packed: each word of [n, out] holds the codes of
    neighbouring inputs. `first` is added to the stored zeros: 1 in version 1 of the format, else 0.
    """
    words = tensors["qweight"]
    code = _code(32 * words.shape[0] / inputs)
    zeros = (words_of(tensors["qzeros"], code) + first) & (2 ** BITS[code] - 1)
    return _of_words(code, words.t(), tensors["scales"].t(), zeros.t(), tensors.get("g_idx"))


def awq(tensors: Tensors, inputs: int) -> StoredLinear:
    """Read an AWQ layer. The codes are packed: each word of [in, n] holds the codes of 8
    neighbouring outputs, in the order of AWQ_PLACES. Raises Unusable if the layer is not stored in
    the 4-bit GEMM version of AWQ.
    """

    def placed(words: torch.Tensor) -> torch.Tensor:
        fields: torch.Tensor = words_of(words, Code.NIBBLES).unflatten(-1, (-1, 8))
        return fields[..., AWQ_PLACES].flatten(-2)

    words, scales = tensors["qweight"], tensors["scales"]
    if words.shape[0] != inputs or 8 * words.shape[1] != scales.shape[1]:
        raise Unusable("has AWQ weights that are not in the 4-bit GEMM version of AWQ")
    codes = placed(words).t()
    codes = codes[:, ::2] | codes[:, 1::2] << 4
    zeros = placed(tensors["qzeros"]).int().t().contiguous()
    return StoredLinear(Code.NIBBLES, codes.contiguous(), scales.t().contiguous(), zeros)


def packed(tensors: Tensors, inputs: int) -> StoredLinear:
    """Read a layer whose codes are packed into words [out, n]. Each word holds the codes of
    neighbouring inputs. If the layer has zero points, each word holds the zero points of
    neighbouring outputs.
    """
    words, scales = tensors["weight_packed"], tensors["weight_scale"]
    code = _code(32 * words.shape[1] / inputs)
    zeros = torch.full(scales.shape, 2 ** (BITS[code] - 1))
    if "weight_zero_point" in tensors:
        zeros = words_of(tensors["weight_zero_point"].t(), code).t()[: len(scales)]
    return _of_words(code, words, scales, zeros, tensors.get("weight_g_idx"))


def in_bytes(tensors: Tensors, inputs: int, block: Block = None) -> StoredLinear:
    """Read a layer that stores each weight in a byte, with one scale for the whole layer or for
    each output, group or `block`. Raises Unusable if the shape of the scales does not fit the shape
    of the weight.
    """
    weight = tensors["weight"]
    code = Code.FLOAT8 if weight.dtype == torch.float8_e4m3fn else Code.BYTES
    scales = next(tensors[name] for name in ("weight_scale", "weight_scale_inv") if name in tensors)
    scales = scales.reshape(-1, scales.shape[-1] if scales.dim() else 1)
    outputs, sizes = len(weight), list[int]()
    for axis, (count, whole) in enumerate(zip(scales.shape, weight.shape, strict=True)):
        size = block[axis] if block and -(-whole // block[axis]) == count else whole // count
        if -(-whole // size) != count or (block is None and whole % count):
            raise Unusable(f"scales {list(scales.shape)} do not divide {list(weight.shape)}")
        sizes.append(size)

    def of_outputs(each: torch.Tensor) -> torch.Tensor:
        return each.reshape(scales.shape).repeat_interleave(sizes[0], 0)[:outputs]

    zeros = tensors.get("weight_zero_point")
    return StoredLinear(
        code,
        weight.view(torch.uint8),
        of_outputs(scales),
        None if zeros is None else of_outputs(zeros.int()),
        _in_order(torch.arange(inputs) // sizes[1], scales.shape[1]),
    )


def compressed(tensors: Tensors, inputs: int, block: Block = None) -> StoredLinear:
    """Read a layer of compressed-tensors, stored in packed words or in bytes: a checkpoint may
    contain both.
    """
    if "weight_packed" in tensors:
        return packed(tensors, inputs)
    return in_bytes(tensors, inputs, block)


def format_of(given: Mapping[str, Any]) -> Format | None:
    """Return the format of the linear layers that a `quantization_config` describes. Returns None
    if this module does not support its quantisation method. Raises Unusable for an unsupported
    variant of a method.
    """
    method = given.get("quant_method")
    if method == "gptq":
        version = given.get("checkpoint_format") or "gptq"
        if version in ("gptq", "gptq_v2"):
            return partial(gptq, first=1 if version == "gptq" else 0)
        raise Unusable(f"has weights quantised by gptq in the unsupported format {version}")
    if method == "awq":
        version = str(given.get("version") or given.get("format") or "gemm").lower()
        if version == "gemm":
            return awq
        raise Unusable(f"has weights quantised by awq in the unsupported version {version}")
    if method == "compressed-tensors":
        sparse = (given.get("sparsity_config") or {}).get("format", "dense")
        if sparse == "dense" and not given.get("transform_config"):
            groups = (given.get("config_groups") or {}).values()
            blocks = ((each.get("weights") or {}).get("block_structure") for each in groups)
            return partial(compressed, block=_block(blocks))
        raise Unusable("has weights quantised by compressed-tensors that are sparse or rotated")
    if method == "fp8":
        return partial(in_bytes, block=_block([given.get("weight_block_size")]))
    return None


def _block(given: Iterable[Any]) -> Block:
    """Return the first block size in `given`, e.g. [128, 128] or "128x128", or None."""
    for each in filter(None, given):
        outputs, inputs = each.split("x") if isinstance(each, str) else each
        return int(outputs), int(inputs)
    return None
