"""Token trees that the draft model grows ahead of a text, in the target's own tokens.

This package must know no transport and no clock, which are given as functions, and nothing of
`drafter_service.foreign`, which builds on it. Start reading in `token_tree`, the tree itself; then
`growing` decides what is fed when, and `worth` whether that pays.
"""
