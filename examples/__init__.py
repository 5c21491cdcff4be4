"""Short programs that show how to use Tandem and its services.

No other package may import this one. The programs call services, and run no model themselves. To
understand these programs, read `minimal_loop` first, a short speculative loop with a drafter and a
verifier. `demo` shows the whole system.
"""
