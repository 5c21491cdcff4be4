"""Programs with a mistake are rejected, be it in an instruction, in the place of its weights or in
the layout of its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.program import build, rules
from tandem.engine.program.instructions import Operation, Place, Written
from tandem.engine.program.layout import Extent, View
from tandem.engine.program.tape import Unrecordable
from tests.laws.passes import of_family

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def _wrong_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    aten = torch.ops.aten
    monkeypatch.setitem(rules.TWO, aten.add.Tensor, Operation.SUBTRACT)


def _forgotten_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = rules.Rules.translate

    def translate(self: Any, one: Any, two: Any) -> list[Written] | None:
        written = plain(self, one, two)
        return written and [each for each in written if each.operation is not Operation.STORE]

    monkeypatch.setattr(rules.Rules, "translate", translate)


def _another_head(monkeypatch: pytest.MonkeyPatch) -> None:
    _changed(monkeypatch, Operation.STORE, lambda view: view.offset, 64)


def _a_row_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    _changed(monkeypatch, Operation.ATTEND, lambda view: view.offset, 256)


def _turned_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build.fused

    def fused(*given: Any) -> list[Written]:
        found = plain(*given)
        for each in found:
            if each.operation is Operation.ROTATE:
                x, cos, sin = each.reads
                each.reads = [x, sin, cos]
        return found

    monkeypatch.setattr(build, "fused", fused)


def _another_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = rules.Rules.translate

    def translate(self: Any, one: Any, two: Any) -> list[Written] | None:
        written = plain(self, one, two)
        for each in written or ():
            if each.operation is Operation.NORM:
                each.number *= 1.5
        return written

    monkeypatch.setattr(rules.Rules, "translate", translate)


def _overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tandem.engine.program.stretch.allocate",
        lambda written, sizes: (dict.fromkeys(sizes, 0), max(sizes.values())),
    )


def _changed(
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    number: Callable[[View], Extent],
    by: int,
) -> None:
    plain = rules.Rules.translate

    def translate(self: Any, one: Any, two: Any) -> list[Written] | None:
        written = plain(self, one, two)
        for each in written or ():
            if each.operation is operation:
                view = View.from_buffer_copy(each.reads[0].view)
                number(view).fixed += by
                each.reads = [Place(each.reads[0].storage, view), *each.reads[1:]]
        return written

    monkeypatch.setattr(rules.Rules, "translate", translate)


@pytest.mark.parametrize(
    "fault",
    [
        _wrong_operation,
        _forgotten_keys,
        _another_head,
        _a_row_too_far,
        _turned_by_others,
        _another_epsilon,
        _overlapping,
    ],
)
def test_a_program_with_a_mistake_is_not_taken(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Unrecordable, match="computes different logits"):
        of_family("llama").program()
