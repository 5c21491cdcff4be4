"""Load on a server, and what its users notice."""
