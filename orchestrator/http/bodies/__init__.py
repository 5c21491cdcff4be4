"""Bodies of requests to values: begin with `schema`, which has every field that is taken."""
