"""A process that lets others go first."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tandem.protos.service.priority import AUTOGROUP, THREADS

USUAL = os.getpriority(os.PRIO_PROCESS, 0)
SCRIPT = """
import json, os, sys, threading
from tandem.protos.service import priority

def found():
    session = priority.AUTOGROUP.read_text() if priority.AUTOGROUP.exists() else ""
    threads = os.getpid(), thread.native_id
    return [
        *(os.getpriority(os.PRIO_PROCESS, each) for each in threads),
        int(session.split()[-1]) if session else 0,  # empty for the kernel's first session
    ]

thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[1]))
before = found()
priority.lower(int(sys.argv[2]))
print(json.dumps([before, found()]))
"""


def niceness(present: int, lowered: int, own_session: bool = True) -> list[list[int]]:
    """Before and after: of a process's main thread, of another one, and of its session."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(present), str(lowered)],
        capture_output=True,
        check=True,
        start_new_session=own_session,
    )
    found: list[list[int]] = json.loads(done.stdout)
    return found


def test_all_threads_and_the_session_of_a_process_let_others_go_first() -> None:
    _, (main, thread, group) = niceness(USUAL, 7)
    assert main == thread == max(USUAL, 7)
    assert group == (7 if AUTOGROUP.exists() else 0)


def test_a_thread_that_is_nicer_stays_so() -> None:
    _, (main, thread, _) = niceness(19, 7)
    assert main == 19
    assert thread == (max(USUAL, 7) if THREADS.exists() else 19)


def test_nothing_changes_where_none_is_asked_for_nor_the_session_of_others() -> None:
    before, after = niceness(USUAL, 0)
    assert after == before
    before, after = niceness(USUAL, 7, own_session=False)
    assert after[2] == before[2]
