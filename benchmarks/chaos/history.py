"""The history of a run: its faults, and every chunk that a client received. The history is written
as JSON lines while the run goes on, so that it can be judged at any time.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, zip_longest
from math import inf
from pathlib import Path
from typing import Any, TextIO

from tandem.protos.errors import Unusable

Tokens = tuple[int, ...]
LAG = 0.25  # a chunk sent before a fault may arrive up to this many seconds after the fault


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected answer to a request: the tokens that the system sent before the first fault."""

    request: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault began."""

    at: float
    what: str  # kind of fault, and role of the affected process
    which: str


@dataclass(frozen=True, slots=True)
class Healed:
    """The most recent fault is over, and the affected process serves again."""

    at: float


@dataclass(frozen=True, slots=True)
class Asked:
    """A client began a stream for one of the requests."""

    at: float
    stream: int
    request: int


@dataclass(frozen=True, slots=True)
class Received:
    """A client received a chunk. `completion_tokens` is the number of tokens that the server has
    sent so far in the stream, according to the chunk.
    """

    at: float
    stream: int
    tokens: Tokens
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream ended, with or without an error."""

    at: float
    stream: int
    error: str = ""


Event = Truth | Struck | Healed | Asked | Received | Ended
KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Truth, Struck, Healed, Asked, Received, Ended)
}


@dataclass
class Verdict:
    """The verdict on a history: what clients lost, and how long they waited. `gaps` has the longest
    gap between two chunks of a stream, in seconds, for each kind of fault. A gap is attributed to
    the fault that began during it or, if no fault began during it, to the last fault before it. If
    several faults began during a gap, the gap has a separate entry, named after the first of these
    faults. `healthy_gaps` has the longest fault-free part of any gap, in seconds, for each kind of
    fault.
    """

    faults: int = 0
    streams: int = 0
    tokens: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    gaps: dict[str, float] = field(default_factory=dict)
    healthy_gaps: dict[str, float] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)

    @property
    def flawless(self) -> bool:
        """Whether no client saw an error, or lost, duplicated or changed tokens."""
        return not (self.lost or self.duplicated or self.changed or self.errors)


def judge(history: Iterable[Event]) -> Verdict:
    """Compare every stream with the expected answer to its request."""
    verdict, truths = Verdict(), dict[int, Tokens]()
    asked, received = dict[int, Asked](), defaultdict[int, list[Received]](list)
    strikes, healed = list[Struck](), list[float]()
    for event in history:
        match event:
            case Truth():
                truths[event.request] = event.tokens
            case Struck():
                strikes.append(event)
                verdict.struck[event.what] += 1
            case Healed():
                healed.append(event.at)
            case Asked():
                asked[event.stream] = event
            case Received():
                received[event.stream].append(event)
            case Ended():
                start, chunks = asked.pop(event.stream), received.pop(event.stream, [])
                _compare(verdict, truths[start.request], chunks, event.error)
                times = [start.at, *(chunk.at for chunk in chunks), event.at]
                for what, gap, healthy in _gaps(times, strikes, healed):
                    verdict.gaps[what] = max(gap, verdict.gaps.get(what, 0.0))
                    healthy = max(healthy, verdict.healthy_gaps.get(what, 0.0))
                    verdict.healthy_gaps[what] = healthy
    verdict.faults = len(strikes)
    return verdict


def _compare(verdict: Verdict, truth: Tokens, chunks: Sequence[Received], error: str) -> None:
    """Compare the chunks of a stream with the expected answer, and add the result and any error to
    the verdict.
    """
    tokens = tuple(token for chunk in chunks for token in chunk.tokens)
    verdict.streams += 1
    verdict.tokens += len(tokens)
    count = 0
    for chunk in chunks:
        count += len(chunk.tokens)
        verdict.lost += chunk.completion_tokens > count
        verdict.duplicated += chunk.completion_tokens < count
        count = chunk.completion_tokens
    if error:
        verdict.errors[error] += 1
    elif len(tokens) < len(truth):
        verdict.lost += 1
    verdict.changed += tokens != truth[: len(tokens)]


def _gaps(
    times: Sequence[float], strikes: Sequence[Struck], healed: Sequence[float]
) -> Iterator[tuple[str, float, float]]:
    """Yield three values for each gap between two consecutive times: the kind of fault to which the
    gap is attributed, the length of the gap in seconds, and the length of its longest fault-free
    part.
    """
    for before, after in pairwise(times):
        first, end = (
            bisect_right(strikes, at, key=lambda strike: strike.at) for at in (before - LAG, after)
        )
        if end - first > 1:
            what = f"{strikes[first].what}, then others"
        else:
            what = strikes[end - 1].what if end else "none yet"
        near = slice(max(0, first - 1), end)
        begins = [strike.at for strike in strikes[near]]
        lasting = zip_longest(begins, healed[near], fillvalue=inf)
        yield what, after - before, _healthy(before, after, lasting)


def _healthy(before: float, after: float, faults: Iterable[tuple[float, float]]) -> float:
    """Return the length of the longest period without a fault between `before` and `after`.
    `faults` has the times at which each fault began and ended.
    """
    longest = 0.0
    for begin, end in faults:
        longest = max(longest, min(begin, after) - before)
        before = max(before, end)
    return max(longest, after - before)


def write(event: Event, lines: TextIO) -> None:
    """Write an event as a line of JSON."""
    fields = {"kind": type(event).__name__.lower(), **asdict(event)}
    lines.write(json.dumps(fields) + "\n")


def read(file: Path) -> Iterator[Event]:
    """Read the events of a history. Raises Unusable if the file cannot be read or is no history."""
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                fields = json.loads(line)
                if "tokens" in fields:
                    fields["tokens"] = tuple(fields["tokens"])
                yield KINDS[fields.pop("kind")](**fields)
    except OSError as error:
        raise Unusable(f"{file}: {error.strerror}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Unusable(f"{file} is not the history of a chaos run") from None
