"""What is compared: systems, checkouts, links, and the prompts that they all get."""
