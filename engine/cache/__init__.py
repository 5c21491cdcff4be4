"""Keys and values of many sessions in one pool, and the rule for what stays cached."""
