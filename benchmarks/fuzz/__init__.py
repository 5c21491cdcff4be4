"""Send generated requests: whatever a caller sends, a service must answer and keep running.

A generated request must depend only on the schemas, the seed and its index, so that it can be
generated and sent again. To understand this package, read `__main__` first. `messages` and `bodies`
generate the requests.
"""
