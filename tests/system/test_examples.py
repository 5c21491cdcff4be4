"""The example scripts print the same as their notebooks, run as a reader runs them."""

from __future__ import annotations

import re
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec

import pytest

from tests.served import Services

PRINTED = {
    "assisted_generation": [
        "assistant_model:",
        r"candidate_input_ids.*candidate_logits",
        "outputs:",
    ],
    "medusa_lite": ["=== Medusa-lite ===", r"step 1, K=\d+ branches", r"score"],
    "minimal_loop": [r"proposed: \[.*\] accepted: \d", r"Accepted tokens \(by target\): \d"],
}


@pytest.mark.parametrize("script", PRINTED)
async def test_a_script_runs_against_running_services_and_prints_its_rounds(
    services: Services, script: str, nothing_left: None
) -> None:
    at = ("--drafter", services.drafter, "--verifier", services.verifier)
    words = ("-m", f"examples.{script}", "Once upon a time", "--max-new-tokens", "8", *at)
    process = await create_subprocess_exec(sys.executable, *words, stdout=PIPE, stderr=PIPE)
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    text = printed.decode()
    assert [line for line in PRINTED[script] if not re.search(line, text)] == []
    assert "Once upon a time" in text


async def test_a_script_that_is_told_of_one_service_asks_for_the_other() -> None:
    words = ("-m", "examples.minimal_loop", "--drafter", "127.0.0.1:1")
    process = await create_subprocess_exec(sys.executable, *words, stdout=PIPE, stderr=PIPE)
    _, complaints = await process.communicate()
    assert process.returncode == 1
    assert complaints.decode().splitlines() == [
        "error: give the addresses of both a drafter and a verifier, or none"
    ]
