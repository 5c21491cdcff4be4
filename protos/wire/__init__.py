"""Converts the contract's values to protobuf messages and back, and refuses messages with invalid
values. The package is pure, and it must not know how messages are transported. To understand
this package, read `codec` first.
"""
