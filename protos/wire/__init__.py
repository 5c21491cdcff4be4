"""Converts the contract's values to messages and back, and refuses messages that are no values. The
package is pure, and it must not know how messages travel. Start reading in `codec`.
"""
