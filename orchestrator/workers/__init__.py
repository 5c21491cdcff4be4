"""Who runs requests: worker, pool, on Ray or in this process."""
