"""Proposes token trees on a cheap device."""
