"""Converts the contract's values to messages and back, and refuses messages that hold no valid
value. The package is pure, and it must not know how messages travel. Start reading in `codec`.
"""
