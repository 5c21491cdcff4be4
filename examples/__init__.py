"""Programs that show how Tandem and its parts are used, each small enough to be read whole.

No package may import this one, and no program here runs a model itself: it asks services. Start
reading in `minimal_loop`, the speculative loop of a notebook with a drafter and a verifier; `demo`
shows the whole system.
"""
