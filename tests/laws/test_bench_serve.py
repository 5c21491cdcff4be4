"""The figures of `tandem bench serve` measure what their names say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.benchmarks.serve import prompts
from tandem.benchmarks.serve.load import Load, blocks
from tandem.benchmarks.serve.record import Drafts, Record
from tandem.benchmarks.serve.summary import by_category, percentile, results
from tandem.protos.errors import Unusable

FIRST = Record(10.0, "qa", [10.5, 10.7, 11.1], 11.1, 4, 5, Drafts(3, 2, 8, 2, (2, 0, 1)))
SECOND = Record(11.0, "code", [11.1], 11.1, 6, 1, Drafts(1, 0, 0, 0, (1,)))
FAILED = Record(12.0, "qa", error="Busy: full")


def test_percentiles_are_numpys() -> None:
    values = [float(value**2 % 17) for value in range(23)]
    for percent in (0, 1, 50, 90, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([], 50) == 0


def test_times_have_vllms_meaning() -> None:
    found = results([FIRST, SECOND, FAILED], 2.0, {})
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, ["Busy: full"])
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (10, 6)
    assert (found["request_throughput"], found["output_throughput"]) == (1.0, 3.0)
    assert found["total_token_throughput"] == 8.0 and found["request_goodput"] is None
    assert found["mean_ttft_ms"] == pytest.approx(300)
    assert found["median_e2el_ms"] == pytest.approx((1100 + 100) / 2)
    assert found["mean_tpot_ms"] == pytest.approx(600 / 4), "of requests with a second token"
    assert found["mean_itl_ms"] == pytest.approx((200 + 400) / 2), "of chunks, not of tokens"
    assert found["p99_itl_ms"] == pytest.approx(398)


@pytest.mark.parametrize(
    ("limits", "good"),
    [({"ttft": 500}, 2), ({"ttft": 499}, 1), ({"tpot": 149}, 1), ({"e2el": 99}, 0)],
)
def test_goodput_counts_requests_within_all_limits(limits: dict[str, float], good: int) -> None:
    records = [FIRST, SECOND, FAILED]
    shifted = {name: limit + 1e-6 for name, limit in limits.items()}
    assert results(records, 2.0, shifted)["request_goodput"] == good / 2


def test_acceptance_is_added_up_over_requests() -> None:
    found = results([FIRST, SECOND], 2.0, {})
    assert found["spec_decode_num_drafts"] == 2
    assert found["spec_decode_acceptance_rate"] == 2 / 8
    assert found["spec_decode_acceptance_length"] == 6 / 4
    assert found["spec_decode_per_position_acceptance_rates"] == [0.5, 0.5]
    assert "spec_decode_num_drafts" not in results([Record(0.0, "", [1.0], 1.0, 1, 1)], 1.0, {})
    parts = by_category([FIRST, SECOND, FAILED])
    assert {name: each["completed"] for name, each in parts.items()} == {"qa": 1, "code": 1}


def test_every_request_is_asked_for_both_ways_in_changing_order() -> None:
    found = list(blocks(10, 4, True))
    for drafts in (True, False):
        assert [place for part, kind in found if kind is drafts for place in part] == list(
            range(10)
        )
    assert [kind for _, kind in found] == [True, False, False, True, True, False, False, True]
    assert [kind for _, kind in blocks(10, 4, False)] == [True] * 4


def test_arrivals_are_a_poisson_process_and_the_same_for_a_seed() -> None:
    pauses = Load(4.0, None, 1).pauses(4000)
    assert pauses == Load(4.0, None, 1).pauses(4000) != Load(4.0, None, 2).pauses(4000)
    assert np.mean(pauses) == pytest.approx(0.25, rel=0.1)
    assert np.std(pauses) == pytest.approx(0.25, rel=0.1)
    assert Load(float("inf"), 2, 1).pauses(3) == [0, 0, 0]


def test_prompts_are_read_from_either_form_of_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a"}, {"category": "qa", "turns": ["b", "c"]}]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    first, second, again = prompts.read(file, 3)
    assert (first, second) == (prompts.Prompt("a"), prompts.Prompt("b", "qa"))
    assert again == first and len(prompts.read(None, 100)) == 100
    for wrong in ("[]", "{}", "x", '{"turns": []}', '{"prompt": 1}'):
        file.write_text(wrong)
        with pytest.raises(Unusable, match="line 1 is no JSON object"):
            prompts.read(file, 1)
    file.write_text("")
    with pytest.raises(Unusable, match="has no prompts"):
        prompts.read(file, 1)
    with pytest.raises(Unusable, match="cannot be read"):
        prompts.read(tmp_path / "nothing", 1)
