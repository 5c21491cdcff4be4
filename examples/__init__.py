"""Programs that show how Tandem and its parts are used, each small enough to be read whole.

No package may import this one, and its programs run no model themselves: they call services. Start
reading in `minimal_loop`, the speculative loop of a notebook with a drafter and a verifier; `demo`
shows the whole system.
"""
