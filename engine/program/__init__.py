"""Make a short program that computes the same as a network's pass. The pass is recorded, the
recording is translated into instructions or fused calls, and examples prove the program.

The package must not know families of models: it knows only which calls a network makes. Start
reading in `proof`, which makes a program, then in `tape`, `build` and `rules`.
"""
