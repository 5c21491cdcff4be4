"""Requests and answers as plain values, whatever the protocol: checked, as tokens and as text."""
