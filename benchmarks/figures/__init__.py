"""What is timed and checked, and how figures are shown."""
