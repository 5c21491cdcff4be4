"""Drafters and verifiers out there."""
