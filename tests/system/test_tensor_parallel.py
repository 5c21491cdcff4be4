"""A target that is split among processes is exact, gives the same text with drafts and without, and
is restarted as a whole when one process ends.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tandem import models
from tests.running_up import TANDEM, Served, running_up
from tests.waiting import wait_until

MANY, RANKS = 4, 2  # with two ranks there is only one order of a sum
SERVES = re.compile(r"^verifier +\S+ +serving ", re.MULTILINE)
PROMPTS = "Once upon a time", "The little dog", "She said that"

pytestmark = pytest.mark.long("starts many processes that import PyTorch")


@pytest.fixture(scope="module")
def up() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM__VERIFIER__TENSOR_PARALLEL", str(RANKS))
        patch.setenv("TANDEM__VERIFIER__KV_BYTES", "64MiB")
        with running_up("--no-ray") as served:
            yield served


def texts(up: Served, *flags: str) -> list[str]:
    """Return what is generated for some prompts, one after the other."""
    words = "--max-new-tokens", "40", "--temperature", "0.7", "--seed", "3", "--json", *flags
    answers = (up.run("generate", prompt, *words) for prompt in PROMPTS)
    return [json.loads(answer.stdout)["text"] for answer in answers]


def ranks(up: Served) -> list[psutil.Process]:
    """Return the live processes of the verifier's model other than the verifier itself."""
    found = []
    for verifier in up.processes("verifier_service"):
        for child in verifier.children():
            with suppress(psutil.Error):
                if "multiprocessing.spawn" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def tried(*arguments: str) -> str:
    words = [sys.executable, "-m", "tests.splitting", str(models.TARGET), str(MANY), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_sums_in_the_order_of_ranks_are_exact() -> None:
    assert tried() == "exact"


def test_sums_by_all_reduce_are_found_not_to_be_exact() -> None:
    assert tried("all_reduce").startswith("exact unavailable: ")


def test_a_target_that_cannot_be_split_is_refused_before_processes_are_started() -> None:
    words = "verifier", "--model", str(models.TARGET), "--tensor-parallel", "64"
    done = subprocess.run([*TANDEM, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot be split among 64 ranks: its num_attention_heads are" in done.stderr


def test_a_split_target_says_the_same_with_drafts_and_without(up: Served) -> None:
    assert f"{RANKS} ranks" in up.run("status").stdout
    assert texts(up) == texts(up, "--num-speculative-tokens", "0")


def test_a_rank_that_ends_has_the_model_started_again(up: Served) -> None:
    before = texts(up)
    (first, *_) = started = ranks(up)
    assert len(started) == RANKS - 1
    first.kill()
    wait_until(lambda: len(now := ranks(up)) == RANKS - 1 and first not in now)
    wait_until(lambda: SERVES.search(up.run("status").stdout))
    assert texts(up) == before
