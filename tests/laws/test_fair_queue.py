"""Which request runs next: the number of places is never exceeded, none is lost, and clients get
equal shares of the tokens.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.orchestrator.frontend import fair_queue
from tandem.orchestrator.frontend.fair_queue import (
    MAX_RETRY_SECONDS,
    MIN_RETRY_SECONDS,
    UNKNOWN_RETRY_SECONDS,
    FairQueue,
    QueueEntry,
    RetryDelay,
)

CLIENTS = st.sampled_from([b"a", b"b", b"c"])
COSTS = st.integers(1, 1000)
PLACES, EACH = 4, 3


class Queue(RuleBasedStateMachine):
    """Requests that come, start, end, or leave before they start."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(PLACES, EACH)
        self.waiting: list[QueueEntry] = []
        self.running: list[QueueEntry] = []

    def start(self) -> None:
        """Start requests as the admission does after every change."""
        for entry in self.queue.start():
            mine = [other for other in self.waiting if other.client == entry.client]
            assert mine[0] is entry, "in the order in which they came"
            self.waiting.remove(entry)
            self.running.append(entry)

    @rule(client=CLIENTS, cost=COSTS)
    def arrive(self, client: bytes, cost: int) -> None:
        self.waiting.append(self.queue.add(client, cost))
        self.start()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        entry = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.leave(entry)
        self.start()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        entry = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.queue.leave(entry)
        self.start()

    @invariant()
    def places_are_kept_and_used(self) -> None:
        of_each = Counter(entry.client for entry in self.running)
        assert self.queue.running == len(self.running) <= PLACES
        assert max(of_each.values(), default=0) <= EACH
        if len(self.running) < PLACES:
            assert all(of_each[entry.client] == EACH for entry in self.waiting)

    def teardown(self) -> None:
        for entry in (*self.waiting, *self.running):
            self.queue.leave(entry)
        assert self.queue.running == 0
        assert not self.queue._queues, "nothing is left of clients that have gone"


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=50, stateful_step_count=30)


@given(st.lists(st.lists(COSTS, min_size=1, max_size=30), min_size=2, max_size=5))
def test_clients_with_a_backlog_get_equal_shares_of_the_tokens(costs: list[list[int]]) -> None:
    """The shares are equal at every moment to within two requests, because a request's use is known
    only at its end.
    """
    queue = FairQueue(1, 1)
    for number, each in enumerate(costs):
        for cost in each:
            queue.add(bytes([number]), cost)
    left = Counter({number: len(each) for number, each in enumerate(costs)})
    served = dict.fromkeys(range(len(costs)), 0)
    while min(left.values()):
        (entry,) = queue.start()
        served[entry.client[0]] += entry.cost
        left[entry.client[0]] -= 1
        assert max(served.values()) - min(served.values()) <= 2 * max(map(max, costs))
        queue.leave(entry)


def test_a_new_client_goes_ahead_of_the_backlog_of_another() -> None:
    queue = FairQueue(2, 2)
    crowd = [queue.add(b"crowd", 100) for _ in range(50)]
    queue.start()
    newcomer = queue.add(b"new", 100)
    queue.leave(crowd[0])
    queue.leave(crowd[1])
    assert newcomer in queue.start()


def test_credit_is_not_saved_up_by_a_client_that_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # keeps the estimate of a usual request at 10,000
    monkeypatch.setattr(fair_queue, "NEWEST_WEIGHT", 0.0)
    queue = FairQueue(2, 2)
    queue.add(b"b", 1)
    running = queue.add(b"a", 10_000)
    queue.start()
    gone = queue.add(b"b", 10_000)
    for entry in [queue.add(b"a", 10) for _ in range(100)]:
        queue.leave(running)
        assert queue.start() == [entry]
        running = entry
    queue.leave(gone)
    first = queue.add(b"a", 10)
    queue.add(b"b", 11)
    queue.leave(running)
    assert queue.start() == [first]


def test_parts_of_a_share_take_turns_and_take_nothing_from_others() -> None:
    queue = FairQueue(1, 1)
    for number in range(4):
        queue.add(b"gateway", 10, b"busy user")
        if number < 2:
            queue.add(b"other", 10)
    queue.add(b"gateway", 10, b"rare user")
    order = []
    while started := queue.start():
        order.append((started[0].client, started[0].subclient))
        queue.leave(started[0])
    parts = [part for client, part in order if client == b"gateway"]
    assert parts[:2] == [b"busy user", b"rare user"]
    assert [client for client, _ in order[:4]].count(b"other") == 2


def test_a_share_may_have_its_own_number_of_places() -> None:
    queue = FairQueue(4, 3)
    for _ in range(4):
        queue.add(b"one", 1, places=1)
        queue.add(b"all", 1, places=4)
    assert Counter(entry.client for entry in queue.start()) == {b"one": 1, b"all": 3}


def test_clients_that_use_the_same_get_the_same_whatever_they_may_use() -> None:
    """A chat without a limit may use the whole context; a chat with a limit of 216 tokens may use
    no more.
    """
    queue, starts = FairQueue(1, 1), Counter[bytes]()
    may = {b"a": 8192, b"b": 216}
    for client, cost in may.items():
        for _ in range(2):
            queue.add(client, cost)
    for _ in range(300):
        (entry,) = queue.start()
        starts[entry.client] += 1
        queue.add(entry.client, may[entry.client])
        queue.leave(entry, 216)
    assert abs(starts[b"a"] - starts[b"b"]) <= 30


def test_clients_that_use_more_get_fewer_starts() -> None:
    queue, starts = FairQueue(1, 1), Counter[bytes]()
    uses = {b"a": 400, b"b": 100}
    for client in uses:
        for _ in range(2):
            queue.add(client, 8192)
    for _ in range(500):
        (entry,) = queue.start()
        starts[entry.client] += 1
        queue.add(entry.client, 8192)
        queue.leave(entry, uses[entry.client])
    assert 3.6 < starts[b"b"] / starts[b"a"] < 4.4


@pytest.mark.parametrize("may", [{b"a": 4000, b"b": 100}, {b"a": 5000, b"b": 5000}])
def test_who_asks_again_when_an_answer_has_come_gets_an_equal_share(may: dict[bytes, int]) -> None:
    """One client uses forty times as many tokens as the other, which has two requests at a time."""
    uses, used = {b"a": 4000, b"b": 100}, Counter[bytes]()
    queue = FairQueue(1, 1)
    for client in (b"a", b"b", b"b"):
        queue.add(client, may[client])
    for _ in range(8000):
        (entry,) = queue.start()
        queue.leave(entry, uses[entry.client])
        used[entry.client] += uses[entry.client]
        queue.add(entry.client, may[entry.client])
    assert 0.45 < used[b"a"] / used.total() < 0.55


def test_what_is_usual_is_remembered_of_so_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MAX_REMEMBERED_CLIENTS", 3)
    queue = FairQueue(1, 1)
    for number in range(9):
        queue.add(bytes([number]), 10)
        queue.leave(*queue.start())
    assert sorted(queue._usual_tokens) == [b"\6", b"\7", b"\x08"]


def ending(every: float, times: int = 100) -> RetryDelay:
    """Return a queue in which requests have ended at these intervals."""
    delay = RetryDelay()
    for number in range(times):
        delay.ended(number * every)
    return delay


def test_nothing_is_known_before_requests_have_ended() -> None:
    delay = RetryDelay()
    assert delay.retry_after() == UNKNOWN_RETRY_SECONDS
    delay.ended(7.0)
    assert delay.retry_after() == UNKNOWN_RETRY_SECONDS


def test_refused_requests_come_back_as_others_end() -> None:
    delay = ending(every=0.5)
    assert [delay.retry_after() for _ in range(4)] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    delay.ended(50.0)
    assert delay.retry_after() == pytest.approx(2.0, rel=0.1)


def test_the_delay_has_bounds_whatever_was_refused() -> None:
    """A burst of refusals is forgotten when the clients with shorter delays have had their time."""
    delay = ending(every=0.001)
    assert delay.retry_after() == MIN_RETRY_SECONDS
    delay = ending(every=1.0)
    assert max(delay.retry_after() for _ in range(10_000)) == MAX_RETRY_SECONDS
    for second in range(100, 111):
        delay.ended(float(second))
    assert delay.retry_after() == pytest.approx(1.0)


def test_a_quiet_hour_is_no_slow_end() -> None:
    delay = ending(every=0.1)
    delay.ended(3600.0)
    assert delay.retry_after() < 1.5
