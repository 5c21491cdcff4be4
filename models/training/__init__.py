"""Train the models that come with Tandem: the embedded pair, a drafter with a tokenizer of its own,
and a target that edits texts.

This package must not import any service, and no service imports it, because models are trained only
once. Start reading in `train`.
"""
