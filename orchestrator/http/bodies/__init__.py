"""Turn the bodies of HTTP requests into the values that every protocol shares, and name what is
wrong with a body in its own words. The package is pure: it must not know connections, headers or
time. A reader of the code starts in `schema`, which has every accepted field.
"""
