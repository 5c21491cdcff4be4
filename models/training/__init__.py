"""Train the models that come with Tandem: the embedded pair, a drafter with a tokenizer of its own,
and a target that edits texts.

This package must not import any service, and no service imports it: models are trained before they
are served. To understand this package, read `train` first, which trains the embedded pair.
"""
