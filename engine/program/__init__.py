"""A network's pass as a short program: it is recorded, translated and proved on examples."""
