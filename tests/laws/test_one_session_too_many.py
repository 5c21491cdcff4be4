"""There is one generation more than there are places, each with pauses between its calls: it waits,
and the others are not computed again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tandem.engine.cache.pages import PAGE
from tandem.protos.errors import Busy, SessionMiss
from tandem.protos.types import Context
from tests.laws.replica import Message, Replica, Tokens

PLACES, PAUSE, CALLS = 8, 1.5, 25
PROMPT: Tokens = tuple(range(1, PAGE // 2))


@dataclass
class Generation:
    """A generation that gets one token per call and sends all tokens again when its session is
    lost.
    """

    name: bytes
    due: float
    tokens: Tokens = PROMPT
    turn: int = 0
    epoch: int = 0
    calls: int = 0
    misses: int = 0
    refused: int = 0

    def call(self, replica: Replica) -> None:
        self.turn += 1
        base = len(self.tokens) - 1 if self.epoch else 0
        context = Context(self.name, self.turn, base, self.tokens[base:], self.epoch)
        try:
            answer = replica.serve(Message(context, self.tokens))
        except Busy as refusal:
            self.refused += 1
            self.due += refusal.retry_after
        except SessionMiss:
            self.misses += 1
            self.epoch = 0
        else:
            self.calls += 1
            self.epoch, self.tokens = answer.epoch, (*self.tokens, self.calls % PAGE)
            self.due += PAUSE


@pytest.mark.parametrize("more", [0, 1])
def test_one_generation_more_than_places_misses_at_most_one_call_in_twenty(more: int) -> None:
    replica = Replica(blocks=PLACES, most=PLACES)
    count = PLACES + more
    waiting = [Generation(bytes([n]), n * PAUSE / count) for n in range(count)]
    done: list[Generation] = []
    while waiting:
        one = min(waiting, key=lambda each: each.due)
        replica.now = max(replica.now, one.due)
        one.call(replica)
        if one.calls == CALLS:
            replica.close(one.name)
            waiting.remove(one)
            done.append(one)
    assert sum(each.misses for each in done) <= sum(each.calls for each in done) / 20
    assert bool(sum(each.refused for each in done)) == bool(more), "the last one waits"
