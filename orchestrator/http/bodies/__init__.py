"""Turn the bodies of requests into values. Begin with `schema`, which has every accepted field."""
