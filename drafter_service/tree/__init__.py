"""Token trees that the draft model grows ahead of a session's text, in the target's own tokens.

This package must not depend on a transport or a clock; streams and a clock function are passed to
it. The package must not depend on `drafter_service.foreign`, which builds on it. To understand this
package, read `token_tree` first, which holds the tree itself. Then read `growing`, which decides
what the draft model is fed and when, and `worth`, which decides whether drafting is worth its cost.
"""
