"""Faults against the processes of a running system, and whether a client could tell."""
