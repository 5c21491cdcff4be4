"""Convert a network's forward pass into a short program that computes the same logits. The pass is
recorded, the recording is translated into instructions or fused calls, and the program is verified
with examples.

The package must not contain code for particular model families: it only knows the function calls of
a network's forward pass. To understand this package, read `proof` first, which makes a program, and
then `tape`, `build` and `rules`.
"""
