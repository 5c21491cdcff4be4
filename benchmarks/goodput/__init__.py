"""Simulate the drafting policy: its tokens per second in many worlds, beside fixed shapes."""
