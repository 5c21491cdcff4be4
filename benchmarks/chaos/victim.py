"""Run a service that signals can make hang, be slow, or send bad drafts. `victim MODULE FLAGS...`
runs a module as `python -m` would.
"""

from __future__ import annotations

import runpy
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from tandem.protos.streams import Proposal
from tandem.protos.types import MAX_NODES

HANG_SECONDS = 0.05  # seconds between two checks whether a hang is over
HANG, RECOVER, SLOW, CRAWL, GARBAGE, TWICE = (signal.SIGRTMIN + number for number in range(1, 7))
DELAYS = {SLOW: 0.2, CRAWL: 2.0}  # seconds that every step takes longer
MODEL_SERVICES = ("tandem.verifier_service", "tandem.drafter_service")


def garbage(proposal: Proposal) -> Proposal:
    """Replace all tokens of a proposal, mostly by wrong ones, and claim that each is certain."""
    wrong = tuple(token ^ 1 for token in proposal.tokens)
    return replace(proposal, tokens=wrong, scores=(0.0,) * len(wrong), distributions=())


def twice(proposal: Proposal) -> Proposal:
    """Give every node of a proposal a sibling that is said to be as likely, up to MAX_NODES nodes
    in all.
    """
    more = MAX_NODES - len(proposal.tokens)
    return replace(
        proposal,
        tokens=proposal.tokens + tuple(token ^ 1 for token in proposal.tokens[:more]),
        parents=proposal.parents + proposal.parents[:more],
        scores=proposal.scores + proposal.scores[:more],
        distributions=(),
    )


SPOILS = {GARBAGE: garbage, TWICE: twice}


def main() -> None:
    """Run the command line."""
    del sys.argv[0]
    mode = RECOVER

    def become(number: int, _: object) -> None:
        """Change the mode to that of a signal. HANG blocks the event loop until the signal RECOVER;
        only threads go on.
        """
        nonlocal mode
        mode = number
        while number == mode == HANG:
            time.sleep(HANG_SECONDS)

    def slowed(run: Any) -> Any:
        def call(*arguments: Any) -> Any:
            time.sleep(DELAYS.get(mode, 0.0))
            return run(*arguments)

        return call

    def spoiled(encode: Any) -> Any:
        def call(stream: int, proposal: Proposal) -> Any:
            return encode(stream, SPOILS[mode](proposal) if mode in SPOILS else proposal)

        return call

    for number in (HANG, RECOVER, *DELAYS, *SPOILS):
        signal.signal(number, become)
    if sys.argv[0] in MODEL_SERVICES:
        from tandem.engine.runner import HFRunner

        HFRunner.__call__ = slowed(HFRunner.__call__)  # type: ignore[method-assign]
    if sys.argv[0] == "tandem.drafter_service":
        from tandem.drafter_service import service as drafter

        drafter.encode_proposal = spoiled(drafter.encode_proposal)  # type: ignore[attr-defined]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
