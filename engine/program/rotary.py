"""Compute rotary positions (Su et al. 2021) with one instruction instead of six. A head x with
rotary positions is x cos + turned(x) sin, where turned(x) is the negated second half of x followed
by its first half.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence, Set
from dataclasses import replace

from tandem.engine.forward.cpu.kernels import ElementType
from tandem.engine.program.instructions import Operation, Place, Written
from tandem.engine.program.layout import View


def fused(written: Sequence[Written], visible: Set[Hashable]) -> list[Written]:
    """Replace the six instructions of each rotation by one, and return all instructions. A rotation
    is replaced only if nothing else reads its intermediate results. `visible` contains the storages
    that code outside the instructions reads.
    """
    makers, uses = defaultdict[Hashable, list[Written]](list), Counter[Hashable]()
    for each in written:
        makers[each.result.storage].append(each)
        uses.update(place.storage for place in each.reads)
    gone = set[int]()
    found = list[Written]()
    for each in written:
        parts = _parts(each, makers)
        hidden = {part.result.storage for part in parts} - {each.result.storage}
        inside = Counter(place.storage for part in parts for place in part.reads)
        if parts and not hidden & visible and all(uses[key] == inside[key] for key in hidden):
            gone |= {id(part) for part in parts}
            (x, cos), (_, sin) = parts[0].reads, parts[1].reads
            each = replace(each, operation=Operation.ROTATE, reads=[x, cos, sin])
        found.append(each)
    return [each for each in found if id(each) not in gone]


def _parts(add: Written, makers: defaultdict[Hashable, list[Written]]) -> list[Written]:
    """If `add` is the last of the six instructions of a rotation, return all six, the products
    first. Otherwise return an empty list.
    """
    products = [part for place in add.reads for part in makers[place.storage]]
    if add.operation is not Operation.ADD or len(products) != 2:
        return []
    plain, crossed = products
    copies = makers[crossed.reads[0].storage]
    negations = [part for copy in copies[:1] for part in makers[copy.reads[0].storage]]
    parts = [plain, crossed, *copies, *negations, add]
    operations = [part.operation for part in parts]
    if operations != [Operation.MULTIPLY] * 2 + [Operation.COPY] * 2 + [
        Operation.NEGATE,
        Operation.ADD,
    ]:
        return []
    return parts if _fits(*parts) else []


def _fits(*parts: Written) -> bool:
    """Whether the six instructions have the memory layouts of a rotation: the two halves of a head
    are adjacent, the numbers of a row are adjacent, and all heads share the angles.
    """
    plain, crossed, first, second, negation, add = parts
    kinds = {part.kind for part in parts} | {first.source_kind, second.source_kind}
    sizes = {(part.outer, part.inner) for part in (plain, crossed, add)}
    halves = {(part.outer, 2 * part.inner) for part in (first, second, negation)}
    if len(kinds) > 1 or sizes != halves or any(len(each.reads) != 2 for each in (plain, crossed)):
        return False
    half = add.inner // 2 * (4 if add.kind == ElementType.FLOAT32 else 2)
    x, turned = plain.reads[0], crossed.reads[0]
    same = [
        *((plain.result, add.reads[0]), (crossed.result, add.reads[1])),
        *((first.result, turned), (second.result, _behind(turned, half))),
        *((negation.reads[0], _behind(x, half)), (second.reads[0], x)),
        (negation.result, first.reads[0]),
    ]
    angles = plain.reads[1].view, crossed.reads[1].view
    views = [place.view for part in parts for place in (part.result, *part.reads)]
    alone = all(_numbers(view)[2:4] == (0, 0) or add.outer == 1 for view in angles)
    return (
        alone
        and all(_numbers(view)[4:] == (1, 0) for view in views)
        and all(_place(one) == _place(other) for one, other in same)
    )


def _numbers(view: View) -> tuple[int, ...]:
    """Return the strides of a view between rows, between outer numbers and between inner numbers.
    Each stride consists of a fixed part and a part that is multiplied by the number of rows.
    """
    extents = view.row, view.outer, view.inner
    return tuple(number for each in extents for number in (each.fixed, each.each))


def _place(place: Place) -> tuple[Hashable, ...]:
    view = place.view
    return place.storage, view.offset.fixed, view.offset.each, *_numbers(view)


def _behind(place: Place, size: int) -> Place:
    view = View.from_buffer_copy(place.view)
    view.offset.fixed += size
    return Place(place.storage, view)
