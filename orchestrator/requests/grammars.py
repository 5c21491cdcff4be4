"""Test the grammars of requests in a separate process before the requests run. If the test of a
grammar takes too long, the test process is killed, and the orchestrator keeps running.
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

TRIAL_SECONDS = 0.5  # CPU time limit for one grammar; a schema of 10 kB takes a tenth of it
NICENESS = 5  # niceness of the process, which gives decoding priority
MAX_REMEMBERED_VERDICTS = 256  # maximum number of cached test results
TOO_LONG = f"takes more than {TRIAL_SECONDS:g} s to compile or to match"


class GrammarTrials:
    """Tests grammars with a model's tokenizer in a separate process, which is started by the first
    test. `ends` are the model's end tokens.
    """

    def __init__(self, model: Path, ends: Sequence[int]) -> None:
        self._command = (sys.executable, "-P", "-m", __name__, str(model), *map(str, ends))
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        # cached test results: the problem of a grammar, or ""
        self._known: OrderedDict[Grammar, str] = OrderedDict()

    async def check(self, grammar: Grammar | None) -> None:
        """Raise InvalidRequest for a grammar that cannot be used."""
        # another check refuses grammars that are too long
        if grammar is None or len(grammar.text.encode()) > MAX_BYTES:
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
        """Kill the process and cancel the tests that wait for it."""
        self._closed = True
        if self._process:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        if self._process:
            _end(self._process)

    def _ask(self, grammar: Grammar) -> str:
        """Return the problem that the process finds in a grammar; empty if there is none."""
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
        # the process was killed, so the next grammar needs a new one
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
    """Yield an object that tests grammars, and kill its process when this context ends."""
    with closing(GrammarTrials(model, ends)) as trials:
        yield trials


def trial(compiler: GrammarCompiler, grammar: Grammar) -> str:
    """Compile a grammar and feed it tokens that it allows. Returns the problem with the grammar; ""
    if there is none.
    """
    try:
        matcher = compiler.fresh(grammar)
    except InvalidRequest as error:
        return error.violations[0].problem
    walk(matcher)
    return problem_of(matcher)


def main(model: str, *ends: str, limit: Callable[[float], object]) -> None:
    """Test the grammars on standard input, one per line, until the input ends. Before each test,
    `limit` is called with the CPU seconds that the test may take. After the test, `limit` is called
    with 0, which removes the limit.
    """
    compiler = GrammarCompiler(lambda: tokenizer_of(Path(model)), tuple(map(int, ends)))
    compiler.compiled(Grammar(GrammarKind.REGEX, "a"))  # loads the tokenizer in advance
    for line in sys.stdin:
        kind, text = json.loads(line)
        limit(TRIAL_SECONDS)
        answer = trial(compiler, Grammar(GrammarKind(kind), text))
        limit(0.0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must reach only the parent process
    # the default action of the timer's signal kills the process even while it compiles a grammar
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    main(*sys.argv[1:], limit=lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds))
