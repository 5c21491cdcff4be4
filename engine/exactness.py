"""What a model promises here: the right logits, and whether they are the same in any company.

Found out at start by trying, not by a list of models: kernels differ by processor, dtype and
thread count.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from engine import attention
from engine.forward import Backend, Forward
from engine.grain import grain
from engine.linears import FULL
from engine.model import INSTEAD, Model
from engine.plan import Segment
from engine.rooms import Room, blocks
from protos import tree
from protos.errors import Unusable
from protos.types import EXACT

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
ROUNDED = 1.0  # where inputs are rounded to 8 bits by the largest one in the pass
TEXTS = 3  # in low precision one that agrees will do: a token may go to another expert
STREAM = 48  # tokens
SIBLINGS = 3  # wrong guesses on either side of the right one
LEAD = 256  # tokens before the stream: a prompt, fed whole it keeps several threads busy
PIECE = 23
PIECES = (1, 2, 5, 11)  # of the stream, in tokens
MARGIN = SIBLINGS * max(PIECES)  # positions for wrong guesses


@dataclass(frozen=True, slots=True)
class Exactness:
    """`problem`: why the rows depend on their company, None if they do not."""

    problem: str | None

    def __str__(self) -> str:
        return EXACT if self.problem is None else f"exact unavailable: {self.problem}"


@torch.inference_mode()
def self_test(forward: Forward, name: str) -> Exactness:
    """Try a model; raises Unusable if it does not compute the same through our attention."""
    if problem := _wrong(forward):
        raise Unusable(f"{name} cannot be served: {problem}; {INSTEAD}")
    if not forward.exact:
        return Exactness("switched off")
    if size := _uneven(forward):
        return Exactness(f"attention with heads of {size} rounds by the number of rows")
    differing, worst = _company(forward)
    if differing:
        return Exactness(f"{differing} of {STREAM} rows differ, by up to {worst:.2g}")
    return Exactness(None)


def _wrong(forward: Forward) -> str | None:
    """What is wrong with the logits through our attention; None if nothing is."""
    kind, least = type(forward.model.network).__name__, math.inf
    tolerance = TOLERANCE[forward.model.dtype] if forward.model.weights == FULL else ROUNDED
    for seed in range(1 if forward.model.dtype == torch.float32 else TEXTS):
        try:
            least = min(least, _difference(forward, seed))
        except (RuntimeError, AttributeError, TypeError, IndexError) as error:
            return f"{kind} failed its first pass ({str(error).splitlines()[0]})"
        if least <= tolerance:
            return None
    return f"the logits of {kind} through our attention differ by {least:.2g}"


def _uneven(forward: Forward) -> int | None:
    """The size of heads for which attention was not seen to agree with itself, if there are any."""
    if forward.backend is not Backend.TILES:
        return None
    like = forward.pool.keys[0]
    for la in sorted(set(forward.model.layers), key=lambda layer: layer.key_size):
        if grain((la.key_size, la.value_size), la.repeat, la.fused, like) is None:
            return la.key_size
    return None


def _difference(forward: Forward, seed: int) -> float:
    """Compare a tree, fed in two steps beside a second session, with plain passes over each path;
    the largest difference, if logits are at most 10, or else as a part of a tenth of the largest;
    infinite if some are not numbers.
    """
    model, network = forward.model, forward.model.network
    rng = random.Random(seed)
    ids = [rng.randrange(model.vocab_size) for _ in range(24)]
    context, nodes, parents = tuple(ids[:10]), tuple(ids[10:16]), (-1, 0, 0, 1, 2, -1)
    first, second = _rooms(forward, 2)
    forward(
        [
            Segment(first, 0, context[:-1], tree.chain(9), 1),
            Segment(second, 0, tuple(ids[16:]), tree.chain(8), 1),
        ]
    )
    fed, hung = (context[-1], *nodes), tree.hang(1, parents)
    (rows,) = forward([Segment(first, 9, fed, hung, len(fed))])
    forward.pool.give_back(second)
    forward.pool.give_back(first)
    worst = 0.0
    network.set_attn_implementation("eager")
    for node in range(-1, len(nodes)):
        path = [nodes[step] for step in tree.path(parents, node)]
        plain = torch.tensor([[*context, *path]], device=model.device)
        logits = network(input_ids=plain, use_cache=False).logits[0, -1].float()
        off = (logits - rows[node + 1]).abs().max().item()
        worst = max(worst, off if math.isfinite(off) else math.inf)
    network.set_attn_implementation(attention.NAME)
    return worst / max(1.0, rows.abs().max().item() / 10)


def _company(forward: Forward) -> tuple[int, float]:
    """How many rows of a stream differ, and by how much, between feeding it alone, a token at a
    time, and feeding it in pieces, as side branches of trees, beside another session.
    """
    rng, vocabulary = random.Random(1), forward.model.vocab_size
    lead = _lead(forward.model)
    text = [rng.randrange(vocabulary) for _ in range(lead + STREAM)]
    alone, beside, other = _rooms(forward, 3)
    for start in range(0, lead, PIECE):  # in pieces here and whole there
        piece = tuple(text[start : min(start + PIECE, lead)])
        forward([Segment(alone, start, piece, tree.chain(len(piece)), 0)])
    if lead:
        forward([Segment(beside, 0, tuple(text[:lead]), tree.chain(lead), 0)])
    plain = torch.cat(
        [
            forward([Segment(alone, place, (text[place],), (-1,), 1)])[0]
            for place in range(lead, len(text))
        ]
    )
    rows: list[torch.Tensor] = []
    while len(rows) < STREAM:
        place = lead + len(rows)
        piece = tuple(text[place:][: rng.choice(PIECES)])
        tokens, parents, path = _with_siblings(rng, piece, vocabulary)
        noise = tuple(rng.randrange(vocabulary) for _ in range(rng.choice([1, 6])))
        company = Segment(other, 0, noise, tree.chain(len(noise)), 1)
        own = Segment(beside, place, tokens, parents, len(tokens))
        logits = forward([company, own])[1]
        forward.pool.compact(beside, place, path)
        rows += [logits[node] for node in path]
    for room in (alone, beside, other):
        forward.pool.give_back(room)
    difference = (torch.stack(rows) - plain).abs().amax(-1)
    return int(difference.count_nonzero()), difference.max().item()


def _with_siblings(
    rng: random.Random, piece: tuple[int, ...], vocabulary: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """A piece of text hung behind wrong siblings: tokens and parents, and the path of the text."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for token in piece:
        parent = path[-1] if path else -1
        wrong = rng.randint(0, SIBLINGS) if path else 0
        tokens += [rng.randrange(vocabulary) for _ in range(wrong)]
        parents += [parent] * wrong
        path.append(len(tokens))
        tokens.append(token)
        parents.append(parent)
    return tuple(tokens), tuple(parents), path


def positions_tried(model: Model) -> int:
    """How many cached tokens a self-test needs room for."""
    return 3 * blocks(_lead(model) + STREAM + MARGIN)


def _lead(model: Model) -> int:
    return max(0, min(LEAD, model.context_length - STREAM - MARGIN))


def _rooms(forward: Forward, count: int) -> list[Room]:
    length = _lead(forward.model) + STREAM + MARGIN
    rooms = [room for _ in range(count) if (room := forward.pool.take(length))]
    if len(rooms) < count:
        raise Unusable(
            f"the self-test needs room for {positions_tried(forward.model)} cached tokens"
        )
    return rooms
