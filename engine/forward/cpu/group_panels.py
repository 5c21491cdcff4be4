"""Weights quantized to 8 or 4 bits, packed into panels in the layout that groups.h reads."""

from __future__ import annotations

import ctypes

import torch
from torch.nn import functional

from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES, ElementType, Grouping
from tandem.engine.forward.grouped_weight import StoredGroups
from tandem.engine.forward.groups import Code, Groups

CODES_AT_ONCE = 1 << 21  # number of quantized codes that are packed at a time


class GroupPanels:
    """The quantized weights of `layers` layers, packed into panels of `width` outputs each. The
    class implements the protocol `grouped_weight.Part`.
    """

    def __init__(self, part: StoredGroups, layers: int, width: int) -> None:
        outputs = part.shape[0] // layers
        self.inputs = part.shape[1]
        self.outputs = outputs
        self.layers = layers
        self.width = width
        self._panels = -(-outputs // width)
        step = max(1, CODES_AT_ONCE // (self.inputs * width))  # panels that are packed at a time
        for layer in range(layers):
            for first in range(0, self._panels, step):
                start, stop = first * width, min((first + step) * width, outputs)
                groups = part.groups(slice(layer * outputs + start, layer * outputs + stop))
                self._put(layer * self._panels + first, groups)
        supers = self.supers
        self._grouping = Grouping(
            scales=self.scales.data_ptr(),
            supers=None if supers is None else supers.data_ptr(),
            group=self.inputs // self.scales.shape[1],
            span=self.inputs if supers is None else self.inputs // supers.shape[1],
            kind=SCALES[self.scales.dtype],
            parts=self.scales.shape[2],
            zero=self.zero,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The total number of outputs in all layers, and the number of inputs."""
        return self.outputs * self.layers, self.inputs

    @property
    def device(self) -> torch.device:
        """The device on which the panels are stored."""
        return self.codes.device

    @property
    def grouping(self) -> int:
        """The address of the Grouping structure, which tells the kernels how to dequantize the
        codes of the panels.
        """
        return ctypes.addressof(self._grouping)

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the dequantized weights of the chosen outputs, [chosen, in] float32. This method
        supports only a single layer.
        """
        if isinstance(chosen, slice):
            chosen = torch.arange(chosen.start, chosen.stop)
        panel, lane = chosen // self.width, chosen % self.width
        if self.code is Code.NIBBLES:
            half = self.width // 2
            codes = (self.codes[panel, :, lane % half] >> (4 * (lane // half))[:, None]) & 15
        else:
            codes = self.codes[panel, :, lane]
        scales = self.scales[panel, :, :, lane]
        supers = None if self.supers is None else self.supers[panel, :, :, lane]
        return Groups(self.code, codes, scales, supers, self.zero).numbers()

    def _put(self, first: int, groups: Groups) -> None:
        """Write the quantized weights of some outputs into the panels, beginning at the panel with
        index `first`. Unused lanes of a layer's last panel are filled with zeros.
        """
        if first == 0:
            self.code, self.zero = groups.code, groups.zero
            made = self._panels * self.layers
            size = self.width // 2 if groups.code is Code.NIBBLES else self.width
            self.codes = torch.empty(made, self.inputs, size, dtype=torch.uint8)
            self.scales = groups.scales.new_empty(made, *groups.scales.shape[1:], self.width)
            self.supers = None
            if groups.supers is not None:
                self.supers = groups.supers.new_empty(made, *groups.supers.shape[1:], self.width)
        codes = self._in_panels(groups.codes)
        panels = slice(first, first + len(codes))
        if groups.code is Code.NIBBLES:
            low, high = codes.chunk(2, -1)
            codes = low | high << 4
        self.codes[panels] = codes
        self.scales[panels] = self._in_panels(groups.scales)
        if self.supers is not None and groups.supers is not None:
            self.supers[panels] = self._in_panels(groups.supers)

    def _in_panels(self, given: torch.Tensor) -> torch.Tensor:
        """Rearrange a tensor [out, ...] as panels [panels, ..., width]. The last panel is padded
        with zeros.
        """
        lacking = -len(given) % self.width
        full = functional.pad(given, (0, 0) * (given.dim() - 1) + (0, lacking))
        panels: torch.Tensor = full.unflatten(0, (-1, self.width)).movedim(1, -1)
        return panels


SCALES = {
    torch.float32: ELEMENT_TYPES[torch.float32],
    torch.float16: ELEMENT_TYPES[torch.float16],
    torch.int8: ElementType.BYTES,
}
