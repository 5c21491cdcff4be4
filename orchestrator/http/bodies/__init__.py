"""Turn the bodies of HTTP requests into the values that every protocol shares, and report what is
wrong with a body under the body's own field names. The package is pure: it must not know
connections, headers or time. Start reading in `schema`, which declares every accepted field.
"""
