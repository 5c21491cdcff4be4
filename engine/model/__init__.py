"""Load a Hugging Face model, refuse it if it cannot be served, and replace its layers."""
