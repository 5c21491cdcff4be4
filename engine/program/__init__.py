"""A network's pass as a short program for a CPU: recorded, translated, proved on examples."""
