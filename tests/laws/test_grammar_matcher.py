"""A grammar allows the same tokens however its state was reached, and it has precedence over other
options.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import models
from tandem.engine.sampling import matcher as matching
from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.matching import GrammarCompiler
from tandem.protos.streams import Proposal
from tandem.protos.tokenizer import tokenizer_of
from tandem.protos.types import SamplingParams
from tandem.verifier_service.proposals import Proposals
from tests.schemas import GRAMMARS, drawn_object

END, VOCAB = 0, 4096
TOKENIZER = tokenizer_of(models.TARGET)
COMPILER = GrammarCompiler(lambda: TOKENIZER, (END,))
YES = Grammar.choice(["yes", "no"])


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def matcher(grammar: Grammar, completion: Sequence[int] = ()) -> GrammarMatcher:
    return GrammarMatcher(COMPILER, grammar, completion)


def allowed(grammar: GrammarMatcher, path: Sequence[int] = ()) -> list[int]:
    known = grammar.allowed(path, VOCAB)
    return [] if known is None else known.nonzero()[0].tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_may_follow_a_path_does_not_depend_on_what_was_looked_at_before(seed: int) -> None:
    rng = random.Random(seed)
    schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(drawn_object(rng)))
    grammar = rng.choice([schema, schema, *GRAMMARS])
    one, text = matcher(grammar), list[int]()
    for _ in range(12):
        path = list[int]()
        for _ in range(rng.randint(0, 3)):  # any path, also an impossible one
            known = allowed(one, path)
            path.append(rng.choice(known) if known and rng.random() < 0.8 else rng.randrange(VOCAB))
        one.following(path[:1], [rng.randrange(VOCAB) for _ in range(4)])
        forced = one.forced(8)
        found = allowed(one)
        assert found == allowed(matcher(grammar, text))
        assert found == forced[:1] or not forced
        if (token := rng.choice(found)) == END:
            break
        one.extend([token])
        text.append(token)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_forced_tokens_are_the_only_ones_all_along(seed: int) -> None:
    rng = random.Random(seed)
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(drawn_object(rng)))
    one = matcher(grammar)
    for _ in range(12):
        for token in one.forced(9):
            assert allowed(one) == [token]
            one.extend([token])
        if (token := rng.choice(allowed(one))) == END:
            break
        one.extend([token])


def test_where_a_text_is_complete_it_may_end_and_where_nothing_may_follow_it_has_to() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a+")
    assert END not in allowed(matcher(grammar))
    assert {END, *ids("a")} <= set(allowed(matcher(grammar, ids("a"))))
    one = matcher(YES, ids("yes"))
    assert allowed(one) == [END]
    one.extend([END])


def test_a_completion_that_the_grammar_does_not_allow_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"received is not what sampling\.choice allows"):
        matcher(YES, ids("maybe"))
    with pytest.raises(InvalidRequest, match=r"sampling\.choice"):
        matcher(YES).extend(ids("maybe"))


@pytest.mark.parametrize(
    "options",
    [
        SamplingParams(suppress_tokens=tuple(range(VOCAB))),
        SamplingParams(min_new_tokens=50, end_tokens=(END,)),
        SamplingParams(begin_suppress_tokens=tuple(range(VOCAB))),
    ],
)
@pytest.mark.parametrize("text", ["", "yes"])
def test_what_other_options_forbid_is_drawn_where_the_grammar_allows_nothing_else(
    options: SamplingParams, text: str
) -> None:
    adjustment = LogitsProcessor(replace(options, grammar=YES), ids(text))
    adjustment.matcher = matcher(YES, ids(text))
    row = adjustment.apply(torch.zeros(VOCAB))
    assert (row > -math.inf).nonzero().flatten().tolist() == allowed(adjustment.matcher)


def test_an_end_is_not_drawn_before_the_fewest_tokens_where_the_text_may_go_on() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a+")
    params = SamplingParams(min_new_tokens=9, end_tokens=(END,), grammar=grammar)
    adjustment = LogitsProcessor(params, ids("a"))
    adjustment.matcher = matcher(grammar, ids("a"))
    row = adjustment.apply(torch.zeros(VOCAB))
    assert row[END] == -math.inf and row[ids("a")[0]] == 0


def test_rows_that_the_grammar_cannot_reach_are_left_as_they_are() -> None:
    adjustment = LogitsProcessor(SamplingParams(grammar=YES), ())
    adjustment.matcher = matcher(YES)
    rows = adjustment.rows(torch.zeros(2, VOCAB + 7), [(), ids("maybe")])
    assert (rows[0] > -math.inf).sum() == len(allowed(adjustment.matcher))
    assert (rows[1] == 0).all()


def test_a_limit_met_on_a_proposed_path_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit there is no answer for that path; the text is refused only if it goes
    there.
    """
    one, path = matcher(YES), ids("yes")[:1]

    def problem_of(met: object) -> str:
        return "is too complex" if one._path else ""

    class Limited:
        """A matcher that reaches its limits after the first token."""

        def __init__(self) -> None:
            self.real = COMPILER.fresh(YES)

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def deep_copy(self) -> Limited:
            return Limited()

        def is_error(self) -> bool:
            return bool(one._path)

    one._start, one._shared, one._matcher = Limited(), False, Limited()  # type: ignore[assignment]
    monkeypatch.setattr(matching, "problem_of", problem_of)
    assert one.allowed(path, VOCAB) is None
    assert allowed(one), "the root is known"
    with pytest.raises(InvalidRequest, match="too complex"):
        one.extend(ids("yes"))


def test_proposals_that_the_grammar_does_not_allow_get_no_rows() -> None:
    proposals, one = Proposals(0, 99), matcher(Grammar.choice(["yes", "no", "never"]))
    good, bad = ids("yes"), ids("maybe")
    for source, chain in enumerate((bad, good)):
        parents = tuple(range(len(chain)))
        proposals.add(Proposal(0, tuple(chain), parents, (-0.1,) * len(chain), source=source))
        proposals.prune(one.following)
    chances = list(proposals.chances())
    assert proposals.draft(9)[0].tokens == tuple(good)
    assert len(chances) == len(good)


def test_forced_tokens_are_certain_and_claimed_by_nobody() -> None:
    proposals, tokens = Proposals(0, 99), [5, 6, 7]
    proposals.add(Proposal(0, (5, 9), (0, 0), (-1.0, -0.1)), trust=-2.0)
    proposals.force(tokens)
    assert list(proposals.chances()) == [1.0] * 3
    draft, expected = proposals.draft(3)
    assert (draft.tokens, expected) == ((5, 6, 7), 3.0)
    assert proposals.claimed(draft, (0, 1, 2)) == proposals.right((0, 1, 2)) == 0
