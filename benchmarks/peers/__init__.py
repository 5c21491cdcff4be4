"""The inputs of benchmarks: the systems and checkouts that they compare, simulated links, prompts.

This package must not know which results a comparison reports. Each benchmark decides itself what it
compares, and which results it reports. Start reading in `systems` for complete servers, in `runner`
for rounds whose results do not depend on timing, and in `checkout` for services in processes of
their own.
"""
