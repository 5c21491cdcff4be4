"""Drafts for a target with the same tokenizer: trees that grow ahead of a text, or whole drafts."""
