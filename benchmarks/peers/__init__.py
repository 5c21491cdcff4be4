"""The parties of comparisons: systems, checkouts, links, and the prompts that they all get."""
