"""The parties of comparisons: systems, checkouts, links, and the prompts that they all get.

This package must not know which figures come of a comparison: each benchmark decides who meets whom
and what counts. Start reading in `systems` for whole servers, in `runner` for rounds without a
clock, and in `checkout` for services in processes of their own.
"""
