"""Keep the keys and values of many sessions in one pool, and decide what stays cached."""
