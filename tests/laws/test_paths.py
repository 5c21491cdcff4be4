"""Attention along the paths of trees is right, and batch-invariant wherever the keys lie, with any
number of threads and every build that this processor runs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.forward.cpu.kernels import Kernels
from tandem.engine.forward.cpu.paths import Paths, path_plan
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.forward.segment import Segment
from tandem.protos import tree
from tests.laws.segments import straight

PLACES = 900
RULES = {
    "plain": AttentionOptions(),
    "scaled": AttentionOptions(scaling=0.3),
    "window": AttentionOptions(window=21),
    "wide window": AttentionOptions(window=300),
    "capped": AttentionOptions(softcap=1.5),
    "sinks": AttentionOptions(sinks=torch.tensor([0.5, -1.0, 3.0, 0.0, 9.0, -9.0])),
}
SIZES = [(64, 64), (3, 5), (256, 256)]  # sizes of keys and of values
CASES = [*(("plain", sizes) for sizes in SIZES), *((rule, (72, 24)) for rule in RULES)]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
HEADS = {2: 6, 6: 6}  # number of query heads by number of key heads


@dataclass(frozen=True)
class Scene:
    """Rows, and for each the places of the keys that it sees, in the order of positions."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    seen: list[list[int]]
    paths: Paths

    def some(self, rows: list[int]) -> Scene:
        """Return some of the rows."""
        seen = [self.seen[row] for row in rows]
        paths = self.paths
        tails = [self.seen[row][int(paths.prefixes[row]) :] for row in rows]
        some = gathered(paths.pages, paths.tables[rows], paths.prefixes[rows], tails)
        return Scene(self.query[rows], self.keys, self.values, seen, some)


def gathered(
    pages: torch.Tensor, tables: torch.Tensor, prefixes: torch.Tensor, tails: list[list[int]]
) -> Paths:
    ends = torch.tensor([0, *(len(tail) for tail in tails)]).cumsum(0)
    places = torch.tensor([place for tail in tails for place in tail], dtype=torch.long)
    return Paths(pages, tables, prefixes, ends, places, PAGE)


def scene(sizes: tuple[int, int], kv_heads: int, dtype: torch.dtype, seed: int = 0) -> Scene:
    """Return two sessions with about 80 and 520 tokens, in pages anywhere, with 7 and 40 rows of a
    tree.
    """
    torch.manual_seed(seed)
    rng, segments = random.Random(seed), []
    numbers = rng.sample(range(PLACES // PAGE), 11)
    for pages, context, count in ((numbers[:2], 79, 7), (numbers[2:], 499, 40)):
        parents = tuple(rng.randrange(-1, node) if node > 2 else node - 1 for node in range(count))
        segments.append(Segment(PageTable(pages), context, (0,) * count, parents, count))
    plan, seen = path_plan(segments), []
    for segment in segments:
        slots = segment.table.slots(0, segment.context + len(segment.parents))
        for node in range(len(segment.tokens)):
            path = [segment.context + each for each in tree.path(segment.parents, node)]
            seen.append([slots[place] for place in (*range(segment.context), *path)])
    keys = torch.randn(PLACES, kv_heads, sizes[0]).to(dtype)
    values = torch.randn(PLACES, kv_heads, sizes[1]).to(dtype)
    query = torch.randn(len(seen), HEADS[kv_heads], sizes[0]).to(dtype)
    return Scene(query, keys, values, seen, plan.paths)


def spelled_out(given: Scene, rule: AttentionOptions) -> torch.Tensor:
    """Compute the same attention in float64, row by row."""
    rows = []
    repeat = given.query.shape[1] // given.keys.shape[1]
    for query, places in zip(given.query.double(), given.seen, strict=True):
        chosen = places[-rule.window :] if rule.window else places
        keys = given.keys[chosen].double().repeat_interleave(repeat, 1)
        values = given.values[chosen].double().repeat_interleave(repeat, 1)
        scale = query.shape[1] ** -0.5 if rule.scaling is None else rule.scaling
        scores = torch.einsum("hd,khd->hk", query, keys) * scale
        if rule.softcap:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks.double()[:, None]], 1)
        weights = scores.softmax(-1)[:, : len(chosen)]
        rows.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(rows)


def attended(build: Kernels, given: Scene, rule: AttentionOptions) -> torch.Tensor:
    return build.attend(given.query, given.keys, given.values, given.paths, rule)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("rule", "sizes"), CASES, ids=str)
def test_a_row_sees_its_path_and_nothing_else(
    rule: str, sizes: tuple[int, int], dtype: torch.dtype, build: Kernels
) -> None:
    for kv_heads in HEADS:
        given = scene(sizes, kv_heads, dtype)
        wanted = spelled_out(given, RULES[rule])
        off = (attended(build, given, RULES[rule]).double() - wanted).abs().max()
        assert off <= ROUNDING[dtype] * (1 + wanted.abs().max())


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_row_has_the_same_bits_in_any_company_and_by_any_number_of_threads(
    rule: str, dtype: torch.dtype, build: Kernels
) -> None:
    given, rng = scene((64, 64), 2, dtype), random.Random(3)
    every = attended(build, given, RULES[rule])
    for build.threads in (1, 3):
        for count in (1, 2, 5, 17, len(every)):
            rows = rng.sample(range(len(every)), count)
            assert torch.equal(attended(build, given.some(rows), RULES[rule]), every[rows])


def test_so_many_rows_that_they_take_turns_have_the_same_bits(build: Kernels) -> None:
    """The results of the parts of a long text are merged at the end or, where there are many, as
    they come.
    """
    context, rows, heads = 700, 300, 64
    keys, values = torch.randn(2, 16 * PAGE, 1, 8)
    query = torch.randn(rows, heads, 8)
    every = build.attend(query, keys, values, Paths.straight(context, rows), AttentionOptions())
    for build.threads in (1, 3):
        for row in (0, 63, 299):
            alone = Paths.straight(context + row, 1)
            one = build.attend(query[[row]], keys, values, alone, AttentionOptions())
            assert torch.equal(one[0], every[row])


@pytest.mark.parametrize("rule", RULES)
def test_it_does_not_matter_where_keys_lie(rule: str, build: Kernels) -> None:
    """A branch of a tree gets the same bits as the same text in one piece."""
    given = scene((64, 64), 2, torch.float32)
    every = attended(build, given, RULES[rule])
    for row, places in enumerate(given.seen):
        moved = torch.arange(len(places))
        keys, values = torch.zeros_like(given.keys), torch.zeros_like(given.values)
        keys[PAGE + moved], values[PAGE + moved] = given.keys[places], given.values[places]
        pages, nothing = torch.arange(1, 1 + len(places) // PAGE + 1), torch.zeros(1).long()
        paths = gathered(pages, nothing, torch.tensor([len(places)]), [[]])
        alone = Scene(given.query[[row]], keys, values, [], paths)
        assert torch.equal(attended(build, alone, RULES[rule])[0], every[row])


def test_numbers_that_are_none_harm_only_those_who_see_them(build: Kernels) -> None:
    given = scene((64, 64), 2, torch.float32)
    right = attended(build, given, AttentionOptions())
    unseen = set(range(PLACES)) - {place for places in given.seen for place in places}
    keys, values = given.keys.clone(), given.values.clone()
    keys[list(unseen)], values[list(unseen)] = torch.nan, torch.inf
    assert torch.equal(
        attended(build, replace(given, keys=keys, values=values), AttentionOptions()), right
    )
    keys[given.seen[3][40]] = torch.nan
    spoilt = attended(build, replace(given, keys=keys, values=values), AttentionOptions())
    sees = torch.tensor([given.seen[3][40] in places for places in given.seen])
    assert spoilt[sees].isnan().all() and torch.equal(spoilt[~sees], right[~sees])


def test_scores_of_any_size_make_weights(build: Kernels) -> None:
    """The scores are far beyond the range in which float32 can compute exponentials."""
    given = scene((64, 64), 2, torch.float32)
    loud = replace(given, query=given.query * 1e4)
    wanted = spelled_out(loud, AttentionOptions())
    assert (attended(build, loud, AttentionOptions()).double() - wanted).abs().max() < 1e-2


def test_queries_that_do_not_fit_the_keys_are_refused(build: Kernels) -> None:
    given = scene((64, 64), 2, torch.float32)
    for query in (given.query.bfloat16(), given.query[..., :32].contiguous()):
        with pytest.raises(RuntimeError, match=r"do not match: sizes (64|32) and 64"):
            attended(build, replace(given, query=query), AttentionOptions())


def test_a_straight_path_is_that_of_a_chain(build: Kernels) -> None:
    chain = path_plan([Segment(straight(0, 64), 9, (0,) * 5, tree.chain(5), 5)]).paths
    alike = Paths.straight(9, 5)
    for name in ("pages", "tables", "prefixes", "tails", "slots"):
        assert torch.equal(getattr(chain, name), getattr(alike, name))
    assert chain.page == alike.page
