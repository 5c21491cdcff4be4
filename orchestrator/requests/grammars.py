"""Try the grammars of requests in a separate process before a stream is opened. A grammar that
takes too long ends that process and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import MAX_BYTES, Grammar, GrammarKind
from tandem.protos.matching import GrammarCompiler, problem_of, walk
from tandem.protos.tokenizer import tokenizer_of

TRIAL_SECONDS = 0.5  # processor time for one grammar; a schema of 10 kB takes a tenth of it
NICENESS = 5  # niceness of the process, so that decoding comes first
MAX_REMEMBERED_VERDICTS = 256  # verdicts that are remembered
TOO_LONG = f"takes more than {TRIAL_SECONDS:g} s to compile or to follow"


class GrammarTrials:
    """Tries grammars with the tokenizer of a model. `ends` are the tokens that end a text. The
    first trial starts the process.
    """

    def __init__(self, model: Path, ends: Sequence[int]) -> None:
        self._command = (sys.executable, "-P", "-m", __name__, str(model), *map(str, ends))
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self._known: OrderedDict[Grammar, str] = OrderedDict()  # problem of each known grammar

    async def check(self, grammar: Grammar | None) -> None:
        """Raise InvalidRequest for a grammar that cannot be used."""
        if grammar is None or len(grammar.text.encode()) > MAX_BYTES:  # refused by other checks
            return
        problem = self._known.get(grammar)
        if problem is None:
            loop = asyncio.get_running_loop()
            problem = await loop.run_in_executor(self._thread, self._ask, grammar)
        if problem != TOO_LONG:
            self._known[grammar] = problem
            self._known.move_to_end(grammar)
        while len(self._known) > MAX_REMEMBERED_VERDICTS:
            self._known.popitem(last=False)
        if problem:
            raise InvalidRequest.of(grammar.field, problem)

    def close(self) -> None:
        """End the process and cancel the trials that wait for it."""
        self._closed = True
        if self._process:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        if self._process:
            _end(self._process)

    def _ask(self, grammar: Grammar) -> str:
        """Return what the process finds wrong with a grammar; empty if nothing is wrong."""
        if self._process and self._process.poll() is not None:
            _end(self._process)
            self._process = None
        process = self._process = self._process or self._started()
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([grammar.kind.value, grammar.text]) + "\n")
        process.stdin.flush()
        if answer := process.stdout.readline():
            return str(json.loads(answer))
        _end(process)
        # starts a process for the next grammar
        self._process = None if self._closed else self._started()
        return TOO_LONG

    def _started(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    with process, suppress(BrokenPipeError):
        process.kill()


@asynccontextmanager
async def trying(model: Path, ends: Sequence[int]) -> AsyncIterator[GrammarTrials]:
    """Provide grammar trials while the scope lasts."""
    with closing(GrammarTrials(model, ends)) as trials:
        yield trials


def trial(compiler: GrammarCompiler, grammar: Grammar) -> str:
    """Compile a grammar and walk one path through it. Returns the problem; empty for none."""
    try:
        matcher = compiler.fresh(grammar)
    except InvalidRequest as error:
        return error.violations[0].problem
    walk(matcher)
    return problem_of(matcher)


def main(model: str, *ends: str, limit: Callable[[float], object]) -> None:
    """Try the grammars on standard input, which has one grammar on each line, until the input ends.
    `limit` is called with the seconds that a trial may take, and with 0 after the trial.
    """
    compiler = GrammarCompiler(lambda: tokenizer_of(Path(model)), tuple(map(int, ends)))
    compiler.compiled(Grammar(GrammarKind.REGEX, "a"))  # reads the tokenizer
    for line in sys.stdin:
        kind, text = json.loads(line)
        limit(TRIAL_SECONDS)
        answer = trial(compiler, Grammar(GrammarKind(kind), text))
        limit(0.0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    # the signal ends the process, whatever the process does
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    main(*sys.argv[1:], limit=lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds))
