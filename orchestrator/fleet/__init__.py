"""Clients of drafters and verifiers, and whether their models fit."""
