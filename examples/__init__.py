"""Short programs that show how to use Tandem and its services.

No other package may import this one. The programs call services, and run no model themselves. Start
reading in `minimal_loop`, a short speculative loop with a drafter and a verifier. `demo` shows the
whole system.
"""
