"""A service that can be made to hang and to be slow: `victim MODULE FLAGS...` runs a module as
`python -m` would, and obeys signals meanwhile.
"""

from __future__ import annotations

import runpy
import signal
import sys
import time
from typing import Any

HANG_SECONDS = 0.05  # at a time
HANG, RECOVER, SLOW, CRAWL = (signal.SIGRTMIN + number for number in range(1, 5))
DELAYS = {RECOVER: 0.0, SLOW: 0.2, CRAWL: 2.0}  # seconds that every step takes longer


def main() -> None:
    """Command line."""
    del sys.argv[0]
    hung, delay = False, 0.0

    def hang(*_: object) -> None:
        """The event loop blocks, and with it everything but threads, until RECOVER."""
        nonlocal hung
        hung = True
        while hung:
            time.sleep(HANG_SECONDS)

    def become(number: int, _: object) -> None:
        nonlocal hung, delay
        hung, delay = False, DELAYS[number]

    def slowed(run: Any) -> Any:
        def call(*arguments: Any) -> Any:
            time.sleep(delay)
            return run(*arguments)

        return call

    signal.signal(HANG, hang)
    for number in DELAYS:
        signal.signal(number, become)
    if sys.argv[0] in ("tandem.verifier_service", "tandem.drafter_service"):
        from tandem.engine.runner import HFRunner

        HFRunner.__call__ = slowed(HFRunner.__call__)  # type: ignore[method-assign]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
