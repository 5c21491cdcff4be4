"""How much of the processors a process gets where others want them too."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")  # on Linux each has a niceness of its own
AUTOGROUP = Path("/proc/self/autogroup")  # by which Linux shares them between sessions (sched(7))


def lower(niceness: int) -> None:
    """Let others go first, from now on: all threads get this niceness, unless theirs is higher, and
    so does the session, if it is this process's.
    """
    threads = [int(thread.name) for thread in THREADS.iterdir()] if THREADS.exists() else [0]
    for thread in threads:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            present = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(present, niceness))
    if niceness and os.getsid(0) == os.getpid() and AUTOGROUP.exists():
        with suppress(OSError):  # where it must not be written
            AUTOGROUP.write_text(str(niceness))
