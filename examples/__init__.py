"""Programs that show how to use Tandem and its parts. Each is short enough to read as a whole.

No other package may import this one. Its programs call services, and run no model themselves. Start
reading in `minimal_loop`, a short speculative loop with a drafter and a verifier. `demo` shows the
whole system.
"""
