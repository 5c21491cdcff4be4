"""Sessions hold the same pages for common text, and pages stay until their memory is needed."""

from __future__ import annotations

from tandem.engine.cache.pages import PAGE
from tandem.protos.types import Context
from tests.laws.replica import LENGTH, Replica, Tokens

SAID: Tokens = tuple(range(100, 100 + PAGE + 20))


def test_sessions_hold_the_same_pages_and_only_a_last_one_in_part_is_copied() -> None:
    replica = Replica(blocks=8, most=5)
    copied: list[int] = []
    copy = replica.pool.copy
    replica.pool.copy = lambda *given: (copied.append(given[3] - given[2]), copy(*given))  # type: ignore[method-assign,assignment,func-returns-value]
    for name in (b"a", b"b", b"c"):
        replica.open(name, (*SAID, name[0]))
    pages = [replica.opened[name].table.pages for name in (b"a", b"b", b"c")]
    assert len({own[0] for own in pages}) == 1 and len({own[1] for own in pages}) == 3
    assert not copied, "the second page is nobody's yet but its own session's"
    replica.close(b"a")
    assert replica.open(b"d", (*SAID, 9)).reused == len(SAID)
    assert copied == [len(SAID) - PAGE]
    replica.check_memory()


def test_pages_that_two_read_at_once_are_kept_once() -> None:
    replica = Replica(blocks=8, most=5)
    whole = (*SAID[:PAGE], 5)
    contexts = [Context(name, 1, 0, whole) for name in (b"a", b"b")]
    with replica.at_work(contexts[0]) as one, replica.at_work(contexts[1]) as other:
        assert one.table.pages[0] != other.table.pages[0]
        for session, context in zip((one, other), contexts, strict=True):
            replica._write(session, 0, whole, 0)
            replica.sessions.keep(session, context, ())
        assert one.table.pages[0] == other.table.pages[0]
        replica.check_memory()


def test_a_chat_reads_only_what_is_new() -> None:
    """The chat has six turns of question and answer, each opened as a session of its own."""
    replica, text = Replica(blocks=16, most=3), SAID[:30]
    for turn in range(6):
        answer = replica.open(bytes([turn]), text)
        assert answer.reused == max(0, len(text) - 5) * (turn > 0)
        replica.close(bytes([turn]))
        replica.check_memory()
        text = (*text, turn, 1, 2, 3, 4)


def test_pages_go_by_last_use_from_the_ends_of_texts() -> None:
    """A prefix that others continue outlives the text after it."""
    replica = Replica(blocks=4, most=2)
    start = tuple(range(PAGE))
    for name, other in ((b"a", 1), (b"b", 2)):
        replica.open(name, (*start, *(other,) * (PAGE - 1)))
        replica.close(name)
    replica.open(b"c", (7,) * PAGE * 2)
    replica.close(b"c")
    assert replica.open(b"d", (*start, *(2,) * (PAGE - 1), 5)).reused == LENGTH - 1
    assert replica.open(b"e", (*start, *(1,) * (PAGE - 1))).reused == PAGE
    replica.check_memory()


def test_a_page_that_was_evicted_is_found_by_nobody() -> None:
    """Another session writes to that page."""
    replica = Replica(blocks=2, most=2)
    replica.open(b"a", SAID)
    replica.close(b"a")
    replica.open(b"b", (5,) * LENGTH)
    replica.close(b"b")
    assert replica.open(b"c", SAID).reused == 0
    replica.check_memory()


def test_scopes_that_hold_nothing_are_forgotten() -> None:
    """Clients can name any number of scopes."""
    replica = Replica(blocks=2, most=2)
    for name in range(9):
        replica.open(b"a", (1, 2), bytes([1, name]), turn=name + 1)
        replica.close(b"a")
    assert len(replica.pool.prefixes._roots) <= 2
    replica.check_memory()
