"""Chains for a target with another tokenizer."""
