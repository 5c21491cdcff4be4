"""Sample tokens: apply every sampling option, and draw with keyed noise."""
