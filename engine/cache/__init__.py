"""Keep the keys and values of many sessions in one pool, and decide which of them stay cached.

This package must not depend on networks or on how attention is computed: it deals only with tokens,
pages and memory. To understand this package, read `sessions` first, which decides what tokens a
session keeps, then `prefix_tree` and `pages`.
"""
