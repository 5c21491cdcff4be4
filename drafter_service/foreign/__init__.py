"""Chains of drafted tokens for a target with another tokenizer. Tokens are translated by decoding
them to text and encoding that text.

This package must not depend on a transport, a clock or the messages on the wire. To understand this
package, read `chains` first, and then `translation`, which translates the tokens.
"""
