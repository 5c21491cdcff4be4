"""A drafter whose tokenizer is nearly the target's: what it reads, and what it never proposes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.drafter_service.tree.vocabulary import Vocabulary
from tandem.protos.types import DraftShape, Method, Rule, SamplingParams

ROWS, MOST = 3, 12
MEDUSA_LITE = Method.MEDUSA_LITE, Rule.MATCH
tokens = st.sampled_from(["a", "b", "c", "<end>", "<think>", "\n"])
vocabularies = st.dictionaries(st.integers(0, MOST - 1), tokens, min_size=1)
options = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    rule=st.sampled_from(Rule),
    seed=st.integers(0, 1 << 32),
)
shapes = st.builds(
    DraftShape,
    levels=st.just(2),
    branches=st.integers(1, 4),
    nodes=st.just(8),
    method=st.sampled_from([Method.TREE, Method.MEDUSA_LITE]),
)


def test_a_token_under_another_id_is_read_and_one_that_lacks_is_neutral() -> None:
    own = {0: "\n", 1: "a", 2: "<end>"}
    target = {0: "\n", 1: "a", 2: "b", 3: "<end>", 5: "<think>"}
    vocabulary = Vocabulary.shared(4, own, target)
    assert vocabulary.read((1, 2, 3, 4, 5, 0)) == (1, 0, 2, 0, 0, 0)
    assert vocabulary.masked == (2, 3)


def test_who_shares_all_tokens_reads_and_proposes_them_as_they_are() -> None:
    logits = torch.randn(ROWS, 8)
    assert Vocabulary(6).read([3, 9]) == (3, 9)
    assert torch.equal(Vocabulary(6).proposable(logits), logits[:, :6])


@given(vocabularies, vocabularies, st.lists(st.integers(0, MOST - 1)))
def test_whatever_the_target_says_the_draft_model_is_fed_a_token_that_it_has(
    own: dict[int, str], target: dict[int, str], text: list[int]
) -> None:
    """The draft model gets one token for each, the same one if both have it."""
    text = [token for token in text if token <= max(target)]
    fed = Vocabulary.shared(max(own) + 1, own, target).read(text)
    assert len(fed) == len(text) and all(token <= max(own) for token in fed)
    for token, read in zip(text, fed, strict=True):
        assert read == token or own.get(token) is None or own.get(token) != target.get(token)
        assert target.get(token) not in own.values() or own[read] == target[token]


def test_a_token_that_the_tokenizer_lists_and_the_model_has_no_logits_for_is_never_fed() -> None:
    listed = {0: "\n", 1: "a", 2: "<end>", 3: "<think>"}
    vocabulary = Vocabulary.shared(2, listed, {**listed, 4: "a"})
    assert vocabulary.read((0, 1, 2, 3, 4)) == (0, 1, 0, 0, 1)
    assert vocabulary.masked == ()


def test_where_a_grammar_allows_masked_tokens_alone_nothing_is_proposed() -> None:
    """A rule that draws from the remaining tokens proposes none either."""
    vocabulary = Vocabulary.shared(3, {0: "a", 1: "b", 2: "<own>"}, {0: "a", 1: "b", 2: "<other>"})
    logits = vocabulary.proposable(torch.randn(2, 3))
    logits[1] = -torch.inf  # all except token 2, which is masked
    visible = torch.ones(3, dtype=torch.bool)
    for method, rule in ((Method.TREE, Rule.MATCH), (Method.TREE, Rule.REJECT), MEDUSA_LITE):
        shape, params = DraftShape(2, 2, 4, method), SamplingParams(temperature=1.0, rule=rule)
        some, none = vocabulary.expander(shape, params, 7, visible)(logits, [8, 8])
        assert some.children and not none.children and not none.drawn


@given(vocabularies, vocabularies, options, shapes, st.integers(0, 1 << 32))
def test_what_is_proposed_means_the_same_to_the_target_by_every_rule(
    own: dict[int, str],
    target: dict[int, str],
    sampling: SamplingParams,
    shape: DraftShape,
    seed: int,
) -> None:
    """With rejection sampling, a proposal includes the distribution that a token was drawn from,
    which the target gets without the other tokens. The text therefore has the target's
    distribution.
    """
    shared = [index for index, token in own.items() if target.get(index) == token]
    count = max(own) + 1
    vocabulary = Vocabulary.shared(count, own, target)
    torch.manual_seed(seed)
    logits = vocabulary.proposable(5 * torch.randn(ROWS, count + 2))
    proposal = vocabulary.expander(shape, sampling, 7, torch.ones(count, dtype=torch.bool))
    for expansion in proposal(logits, [7, 8, 9]):
        assert bool(expansion.children) == bool(shared)
        assert {child.token for child in expansion.children} <= set(shared)
        if expansion.drawn:
            assert set(expansion.drawn.tokens) <= set(shared)
