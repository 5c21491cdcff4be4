"""Turn HTTP request bodies into protocol-independent requests, and report invalid fields under the
names that the body uses. The package is pure: it must not depend on connections, headers or time.
To understand this package, first read `schema`, which declares every accepted field.
"""
