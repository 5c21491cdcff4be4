"""Every sampling option, and keyed noise."""
