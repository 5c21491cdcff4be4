"""How long a verifier in lockstep waits for a guess: as long as a guess saves, and not at all while
guesses come later than that.

In lockstep each step needs a guess behind exactly its length; an empty one has it decode plainly.
Guesses that come too late still show how late they are, so a drafter that recovers is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.orchestrator.rounds.stream import Timer, TimerHandle
from tandem.protos.streams import Fact, Guess

WEIGHT, GAIN_WEIGHT = 0.25, 0.125  # of what is newest: seconds, and tokens, which vary more
OUTLIER = 2.0  # times an average: longer steps count as that long
LONGEST = 2  # times what a guess saves: the seconds that it is waited for
OVERDUE = 4  # times what it may save at most: the seconds that one counts as which did not come
HOPED, HOPED_AGAIN = 2.0, 1.0  # tokens that a guess may add: at first, and when tried again
TRIAL_STEPS = 64  # of one kind, after which one of the other is tried
FIRST_SECONDS = 0.02  # of a step, as long as none is known
REMEMBERED = 64  # lengths whose guess may still come


@dataclass(slots=True)
class WaitPolicy:
    """Averages over a generation: seconds from a fact to the guess behind it, tokens that a guess
    adds to a step, and seconds of steps without and with a guess.
    """

    delay: float = 0.0
    gain: float = HOPED
    plain: float = 0.0  # 0 = not known
    guessed: float = 0.0
    in_a_row: int = 0  # steps of one kind: above 0 those with a guess, below 0 those without

    @property
    def seconds(self) -> float:
        """To wait for the next guess."""
        plain = self.plain or self.guessed or FIRST_SECONDS
        worth = (1 + self.gain) * plain - (self.guessed or plain)
        most = TRIAL_STEPS if self.plain else 1  # steps with a guess before one without
        waits = self.delay <= worth and self.in_a_row < most
        return LONGEST * worth if waits else 0.0

    def came(self, delay: float) -> None:
        """A guess came so many seconds after its fact."""
        self.delay += WEIGHT * (delay - self.delay)

    def missed(self) -> None:
        """It did not come in time."""
        self.came(OVERDUE * HOPED * (self.plain or FIRST_SECONDS))

    def stepped(self, seconds: float, fact: Fact) -> None:
        """A step took so long; the first of an opening reads its context too."""
        if fact.epoch:
            return
        if fact.drafted:
            self.guessed = _average(self.guessed, seconds)
            self.gain += GAIN_WEIGHT * (len(fact.tokens) - 1 - self.gain)
            self.in_a_row = max(0, self.in_a_row) + 1
        else:
            most = OUTLIER * self.guessed if self.guessed and not self.plain else seconds
            self.plain = _average(self.plain, min(seconds, most))
            self.in_a_row = min(0, self.in_a_row) - 1
            if self.in_a_row % TRIAL_STEPS == 0:
                self.gain = max(self.gain, HOPED_AGAIN)


def _average(known: float, newest: float) -> float:
    return known + WEIGHT * (min(newest, OUTLIER * known) - known) if known else newest


class Lockstep:
    """One generation's; `send` takes what the verifier is to verify."""

    def __init__(self, timer: Timer, send: Callable[[Guess], None]) -> None:
        self.policy = WaitPolicy()
        self._timer, self._send = timer, send
        self._asked: dict[int, float] = {}  # when which length was reached
        self._length, self._sent = -1, 0.0  # the length that the verifier has a guess for, and when
        self._handle: TimerHandle | None = None

    def wait(self, length: int, drafting: bool) -> None:
        """The verifier waits for a guess behind this length, unless it has one; whether a drafter
        makes one.
        """
        self.stop()
        if self._length == length:
            return
        self._length, self._asked[length] = -1, self._timer.now()
        while len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]
        seconds = self.policy.seconds if drafting else 0.0
        if seconds:
            self._handle = self._timer.call_later(seconds, partial(self._give_up, length))
        else:
            self._answer(length)

    def takes(self, behind: int, length: int) -> bool:
        """A guess came, and whether it is the one that the verifier waits for, behind `length`."""
        now = self._timer.now()
        if (asked := self._asked.pop(behind, None)) is not None:
            self.policy.came(now - asked)
        if behind != length or self._length == length:
            return False
        self.stop()
        self._length, self._sent = length, now
        return True

    def opened(self) -> None:
        """The verifier was opened: it has no guess."""
        self.stop()
        self._length = -1

    def stepped(self, fact: Fact) -> None:
        """The verifier has taken a step."""
        if self._length >= 0:
            self.policy.stepped(self._timer.now() - self._sent, fact)

    def stop(self) -> None:
        """Send nothing more."""
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _give_up(self, length: int) -> None:
        self.policy.missed()
        self._answer(length)

    def _answer(self, length: int) -> None:
        self._length, self._sent = length, self._timer.now()
        self._send(Guess(length))
