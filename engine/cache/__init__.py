"""Keep the keys and values of many sessions in one pool, and decide what stays cached.

The package must not know networks, or what is computed with keys and values: it knows tokens, pages
and memory. Start reading in `sessions`, which has the rule for a session, then in `prefix_tree` and
`pages`.
"""
