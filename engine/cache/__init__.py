"""Keep the keys and values of many sessions in one pool, and decide what stays cached.

The package must not know networks or computations with keys and values: it knows only tokens, pages
and memory. Start reading in `sessions`, which applies the session rule, then in `prefix_tree` and
`pages`.
"""
