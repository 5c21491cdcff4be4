"""Token trees that the draft model grows ahead of a text, in the target's own tokens.

This package must not know a transport or a clock; streams and a clock function are given to it. It
must not know `drafter_service.foreign` either, which builds on this package. Start reading in
`token_tree`, which holds the tree itself. Then read `growing`, which decides what is fed when, and
`worth`, which decides whether that pays.
"""
