"""The inputs of benchmarks: the systems and checkouts that they compare, simulated links, prompts.

This package must not know which results a comparison reports. Each benchmark decides itself what it
compares, and which results it reports. To understand this package, read `systems` first for
complete servers, `runner` for rounds whose results do not depend on timing, and `checkout` for
services in processes of their own.
"""
