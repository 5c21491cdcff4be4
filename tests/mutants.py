"""Mistakes planted in a copy of the project, one at a time; `make test` has to find each.

    .venv/bin/python -m tests.mutants [NAME ...]

Prints the first test that fails for each mistake; exits with 1 if no test fails for one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests/laws", "tests/contracts", "tests/services", "tests/system")  # cheapest first
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "smollm2", "__pycache__", ".*_cache")
PYTEST = ["pytest", "-n", "logical", "--dist", "loadfile", "--no-loadscope-reorder", "-q", "-x"]
# this test file fails with every mistake, because it looks for the unchanged texts
PLACES = "tests/contracts/test_mutants.py"


@dataclass(frozen=True)
class Mutant:
    """A file, a text that occurs once in it, and the mistake that replaces the text."""

    file: str
    right: str
    wrong: str


MUTANTS = {
    "the stop string that ends last cuts the text": Mutant(
        "orchestrator/requests/text.py",
        "at, self.matched = min(found)",
        "at, self.matched = max(found)",
    ),
    "a stop string counts one token before min_new_tokens": Mutant(
        "orchestrator/requests/text.py", "self._min_tokens < 0", "self._min_tokens <= 0"
    ),
    "a prompt may reach one token above the context": Mutant(
        "orchestrator/requests/checks.py",
        "elif len(prompt) + wanted > model.context_length:",
        "elif len(prompt) + wanted > model.context_length + 1:",
    ),
    "the drafter keeps the session of a request that has ended": Mutant(
        "orchestrator/rounds/relay.py", "self.drafter.close(self.generation.session_id)", "pass"
    ),
    "a busy service says that it is unavailable": Mutant(
        "protos/errors.py", 'status = "RESOURCE_EXHAUSTED"', 'status = "UNAVAILABLE"'
    ),
    "accepted tokens behind a stop string are counted": Mutant(
        "protos/streams.py", "min(self.accepted, len(tokens))", "self.accepted"
    ),
    "a client that was served keeps its credit": Mutant(
        "orchestrator/frontend/fair_queue.py",
        "first.credit - entry.charged if first.waiting else 0",
        "first.credit",
    ),
    "tokens that were rejected stay in the session": Mutant(
        "engine/cache/session.py", "del self.tokens[length:]", "pass"
    ),
    "a page that was evicted is found by others": Mutant(
        "engine/cache/prefix_node.py",
        "del self.children[key], self.keys[bisect_left(self.keys, key)]",
        "pass",
    ),
    "a page is given up a window too early": Mutant(
        "engine/cache/footprint.py", "length + 1 - self.window", "length + 1"
    ),
    "a text goes on where its window was given up": Mutant(
        "engine/cache/prefix_tree.py",
        "self._pool.usable(pages, len(path) * page)",
        "len(path) * page",
    ),
    "what other sessions still see is given up": Mutant(
        "engine/cache/ledger.py", " and not self._viewers[page]", ""
    ),
    "a page goes back to others with half of its memory": Mutant(
        "engine/cache/ledger.py", "if page in self._unbacked or self.allocated", "if self.allocated"
    ),
    "scopes share what is cached": Mutant(
        "engine/cache/prefix_tree.py",
        "self._roots.get(session.scope, PrefixNode())",
        "self._roots.get(b'', PrefixNode())",
    ),
    "what was only proposed is shared": Mutant(
        "engine/cache/sessions.py",
        "session.settled = session.length - proposed",
        "session.settled = session.length",
    ),
    "the session that was used last is evicted first": Mutant(
        "engine/cache/eviction.py",
        "key=lambda session: session.used",
        "key=lambda session: -session.used",
    ),
    "a close forgets a session that is at a newer turn": Mutant(
        "engine/cache/sessions.py",
        "if not session or session.turn <= turn:",
        "if not session or session.turn < turn:",
    ),
    "penalties count the newest token of a step alone": Mutant(
        "verifier_service/decoding.py",
        "self.adjustment.extend(tokens)",
        "self.adjustment.extend(tokens[-1:])",
    ),
    "a path that was looked at is not given up again": Mutant(
        "engine/sampling/matcher.py",
        "self._matcher.rollback(len(self._path) - same)",
        "pass",
    ),
    "what is never drawn is drawn where a grammar allows more": Mutant(
        "engine/sampling/sampler.py",
        "others[barred] = False",
        "pass",
    ),
    "a text goes on for one token after a stop token": Mutant(
        "protos/streams.py",
        "return tokens[: end + 1], True",
        "return tokens[: end + 2], True",
    ),
    "answers of one scope are drafted from in another": Mutant(
        "verifier_service/answers.py",
        "self._scopes.get(scope)",
        "self._scopes.get(next(iter(self._scopes), scope))",
    ),
    "a prompt's log-probabilities are of the tokens before": Mutant(
        "verifier_service/prompt_logprobs.py",
        "text[start + 1 : stop + 1]",
        "text[start:stop]",
    ),
    "zeros of GPTQ's first version are taken as they are": Mutant(
        "engine/formats/linear_formats.py", 'first=1 if version == "gptq" else 0', "first=0"
    ),
}


def find(mutant: Mutant) -> str:
    """Return the first test that fails with the mistake, or nothing if all pass."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
        file = copy / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.right) == 1, f"{mutant.file} has changed: {mutant.right}"
        file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        for part in FOLDERS:
            done = subprocess.run(
                [sys.executable, "-m", *PYTEST, "-m", "not long", "--ignore", PLACES, part],
                cwd=copy,
                env=os.environ | {"PYTHONPATH": str(copy / "src")},
                capture_output=True,
                text=True,
            )
            if found := re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
                return found[1]
            assert done.returncode == 0, done.stdout + done.stderr
    return ""


def main(*names: str) -> int:
    """Plant the named mistakes, or all; return the number that no test found, at most 1."""
    missed = 0
    if unknown := [name for name in names if name not in MUTANTS]:
        sys.exit(f"no such mistake: {unknown[0]}; there are {', '.join(MUTANTS)}")
    for name in names or MUTANTS:
        test = find(MUTANTS[name])
        print(f"{name}: {test or 'NOT FOUND'}", flush=True)
        missed |= not test
    return missed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
