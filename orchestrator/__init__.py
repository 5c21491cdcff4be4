"""Runs rounds for many requests: propose -> verify -> advance."""
