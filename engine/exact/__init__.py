"""Find out at start what a model promises bit for bit, by trying it."""
