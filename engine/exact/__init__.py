"""What is promised bit for bit, and how it is found out at start."""
