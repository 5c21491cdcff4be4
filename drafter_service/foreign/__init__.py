"""Chains of drafted tokens for a target with another tokenizer, translated through the text.

This package must know no transport and no clock, and nothing of the messages on the wire. Start
reading in `chains`; the translation itself is in `translation`.
"""
