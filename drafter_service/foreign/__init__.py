"""Chains of drafted tokens for a target with another tokenizer, translated through the text.

This package must not know a transport, a clock or the messages on the wire. Start reading in
`chains`; the translation itself is in `translation`.
"""
