"""What benchmarks compare: systems and checkouts, the links between services, and prompts.

This package must not know which results a comparison reports. Each benchmark decides what is
compared and what counts. Start reading in `systems` for whole servers, in `runner` for rounds
without a clock, and in `checkout` for services in processes of their own.
"""
