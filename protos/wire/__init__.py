"""Converts the contract's values to messages and back."""
