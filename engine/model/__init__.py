"""Load a model from its files, judge whether it can be served, and replace its layers by faster
ones.

The package must not depend on sessions or on how segments are fed; the reference logits that it
computes are those of the network itself. Start reading in `load`, which performs all steps, and
then in `linears`.
"""
