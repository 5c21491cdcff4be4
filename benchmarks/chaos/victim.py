"""Run a service that hangs, slows down or sends bad drafts when it receives certain signals. The
command line `victim MODULE FLAGS...` runs a module as `python -m` would.
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

HANG_SECONDS = 0.05  # seconds between two checks for the signal RECOVER
HANG, RECOVER, SLOW, CRAWL, GARBAGE, TWICE = (signal.SIGRTMIN + number for number in range(1, 7))
DELAYS = {SLOW: 0.2, CRAWL: 2.0}  # seconds that are added to every step of the model
MODEL_SERVICES = ("tandem.verifier_service", "tandem.drafter_service")


def garbage(proposal: Proposal) -> Proposal:
    """Replace every token of a proposal by a different one, and claim that it has probability 1."""
    wrong = tuple(token ^ 1 for token in proposal.tokens)
    return replace(proposal, tokens=wrong, scores=(0.0,) * len(wrong), distributions=())


def twice(proposal: Proposal) -> Proposal:
    """Add a sibling with the same score to every node of a proposal, up to MAX_NODES nodes in
    total.
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
    """Run the service module that the command line names."""
    del sys.argv[0]
    mode = RECOVER

    def become(number: int, _: object) -> None:
        """Handle a signal: switch to the faulty behaviour that it selects, or back to normal. HANG
        blocks the event loop until the signal RECOVER arrives, while all other threads continue.
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
