"""Make a short program of a network's pass: the pass is recorded, translated into instructions or
fused calls, and proved on examples.

The package must not know families of models: it knows only which calls a network makes. Start
reading in `proof`, which makes a program, then in `tape`, `build` and `rules`.
"""
