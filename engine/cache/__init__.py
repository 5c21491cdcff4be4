"""Keep the keys and values of many sessions in one pool, and decide which of them stay cached.

This package must not depend on networks or on how attention is computed: it deals only with tokens,
pages and memory. Start reading in `sessions`, which applies the session rule, then in `prefix_tree`
and `pages`.
"""
