"""Find out at start, by trying it, whether a model computes the right logits and promises them bit
for bit.

The package must not know how a pass is computed: it feeds segments through the interface of a
runner. Start reading in `exactness`, which judges what `trial` measures.
"""
