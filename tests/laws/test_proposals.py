"""What is proposed after a node: drawn tokens, branches of Medusa-lite, and the confidence in
each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tandem.drafter_service.tree.expansion import (
    FIRST_TOP_P,
    LARGE_VOCABULARY,
    SENT_TOKENS,
    branching,
    expander,
    likeliest_children,
    medusa_lite_children,
    sampled_children,
)
from tandem.engine.sampling.noise import gumbel
from tandem.protos.types import DraftShape, Method, Rule, SamplingParams

LOGITS = torch.tensor([[0.5, 2.0, -1.0, 1.5, 0.0, -3.0]])
VISIBLE = torch.tensor([True, True, True, False, True, True])
ROOT = 5


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("method", [Method.TREE, Method.MEDUSA_LITE])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_proposal_says_how_likely_the_draft_model_finds_it(
    rule: Rule, method: Method, temperature: float
) -> None:
    """Without the draft model's probability, `confidence` would never end a draft."""
    params = SamplingParams(temperature=temperature, rule=rule, seed=3)
    proposal_ = expander(DraftShape(4, 2, 8, method, confidence=0.1), params, ROOT, VISIBLE)
    for position in (ROOT, ROOT + 1):
        (proposal,) = proposal_(LOGITS, [position])
        for child in proposal.children:
            assert 0 < child.probability < 0.9


def test_where_the_likeliest_token_stands_the_likeliest_is_proposed() -> None:
    """The rule then proposes the likeliest token instead of the target's draw, but still applies
    all other options.
    """
    asked = SamplingParams(temperature=1.0, repetition_penalty=1.5, rule=Rule.TOP1)
    for seed in range(20):
        shape, params = DraftShape(4, 3, 8), replace(asked, seed=seed)
        (proposal,) = expander(shape, params, ROOT, VISIBLE)(LOGITS, [ROOT])
        assert [child.token for child in proposal.children] == [1, 3, 0]


def test_drawn_tokens_come_from_what_is_sent_and_none_comes_twice() -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1)) * 3
    for seed in range(50):
        params = SamplingParams(temperature=1.0, rule=Rule.REJECT, seed=seed)
        (proposal,) = sampled_children(params, 4, ROOT)(logits, [ROOT])
        assert proposal.drawn is not None and len(proposal.drawn.tokens) <= SENT_TOKENS
        tokens = [child.token for child in proposal.children]
        assert len(set(tokens)) == 4 and set(tokens) <= set(proposal.drawn.tokens)
        assert min(proposal.drawn.weights) > 0
        (deeper,) = sampled_children(params, 4, ROOT)(logits, [ROOT + 1])
        assert len(deeper.children) == 1


def test_a_token_is_drawn_as_often_as_its_weight_says() -> None:
    """One chi-square test of the first draw, as a smoke test."""
    count, seen = 1000, torch.zeros(6)
    for seed in range(count):
        params = SamplingParams(temperature=1.0, rule=Rule.REJECT, seed=seed)
        (proposal,) = sampled_children(params, 2, ROOT)(LOGITS, [ROOT])
        seen[proposal.children[0].token] += 1
    expected = LOGITS[0].softmax(-1) * count
    assert ((seen - expected) ** 2 / expected).sum() < 20.5  # 5 degrees of freedom, p = .001


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_first_tokens_are_visible_ones_of_the_nucleus_in_the_order_of_the_noise(
    temperature: float,
) -> None:
    params = SamplingParams(temperature=temperature, seed=8)
    (proposal,) = medusa_lite_children(params, 3, ROOT, VISIBLE)(LOGITS, [ROOT])
    scores = (LOGITS[0] / (temperature or 0.9)).log_softmax(-1)
    total, pool = 0.0, []
    for token in scores.argsort(descending=True).tolist():
        total += scores[token].exp().item()
        if total <= FIRST_TOP_P and VISIBLE[token]:
            pool.append(token)
    noisy = scores + gumbel(8, ROOT, torch.arange(6))
    assert [c.token for c in proposal.children] == sorted(pool, key=lambda t: -noisy[t])[:3]


def test_first_tokens_are_those_that_the_target_may_draw() -> None:
    """A greedy target ignores `top_k`, so first tokens then come from the draft model's whole
    nucleus.
    """
    params = SamplingParams(1.0, top_k=1, seed=8)
    for temperature, count in ((1.0, 1), (0.0, 2)):
        given = replace(params, temperature=temperature)
        (proposal,) = medusa_lite_children(given, 3, ROOT, VISIBLE)(LOGITS, [ROOT])
        assert len(proposal.children) == count


def test_without_a_visible_token_the_likeliest_is_proposed() -> None:
    nothing = torch.zeros(6, dtype=torch.bool)
    (proposal,) = medusa_lite_children(SamplingParams(), 3, ROOT, nothing)(LOGITS, [ROOT])
    assert [child.token for child in proposal.children] == [1]


def test_branches_go_on_with_the_likeliest_token_and_say_how_likely_it_is() -> None:
    rows = torch.cat([LOGITS, -LOGITS])
    proposals = medusa_lite_children(SamplingParams(1.0), 3, ROOT, VISIBLE)(rows, [ROOT + 2] * 2)
    assert [[child.token for child in proposal.children] for proposal in proposals] == [[1], [5]]
    gains = [proposal.children[0].logprob for proposal in proposals]
    assert gains == pytest.approx(rows.log_softmax(-1).amax(-1).tolist())


@pytest.mark.parametrize(
    ("shape", "branches"),
    [(DraftShape(4, 3, 12), 3), (DraftShape(4, 3, 9), 2), (DraftShape(4, 3, 2), 1)],
)
def test_as_many_whole_branches_as_the_nodes_allow(shape: DraftShape, branches: int) -> None:
    fitted = branching(shape)
    assert (fitted.branches, fitted.nodes) == (branches, 4 * branches)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_is_proposed_for_its_own_position_in_any_company(temperature: float) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(2)) * 3
    propose = likeliest_children(SamplingParams(temperature, seed=4), 3)
    together = propose(logits, [7, 9, 7])
    for row, position, expansion in zip(logits, [7, 9, 7], together, strict=True):
        (alone,) = propose(row[None], [position])
        assert [c.token for c in alone.children] == [c.token for c in expansion.children]
        gains = [child.logprob for child in expansion.children]
        assert [child.logprob for child in alone.children] == pytest.approx(gains)


@pytest.mark.parametrize("peak", [4.0, 6.0])
@pytest.mark.parametrize("options", [(1.0, 0, 1.0), (0.8, 50, 0.95)])
def test_children_in_a_large_vocabulary_are_those_of_the_whole_row(
    peak: float, options: tuple[float, int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test covers both ways to propose, in rows where a few tokens have almost all of the
    probability.
    """
    row = torch.randn(1, LARGE_VOCABULARY, generator=torch.Generator().manual_seed(5)) * peak
    params, visible = SamplingParams(*options, seed=9), torch.arange(LARGE_VOCABULARY) % 3 > 0
    expanders = [
        likeliest_children(params, 4, with_probabilities=True),
        sampled_children(params, 4, ROOT),
        medusa_lite_children(params, 4, ROOT, visible),
    ]
    found = [propose(row, [ROOT])[0].children for propose in expanders]
    monkeypatch.setattr(
        "tandem.drafter_service.tree.expansion.LARGE_VOCABULARY", LARGE_VOCABULARY + 1
    )
    for children, propose in zip(found, expanders, strict=True):
        (whole,) = propose(row, [ROOT])
        assert [child.token for child in children] == [child.token for child in whole.children]
        for child, other in zip(children, whole.children, strict=True):
            assert child.probability == pytest.approx(other.probability, rel=1e-3)
