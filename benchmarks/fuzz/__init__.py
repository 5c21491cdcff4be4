"""Send generated requests: whatever a caller sends, a service must answer and keep running.

The requests must depend on schemas and seeds alone, so that any request can be repeated by its
number. Start reading in `__main__`; `messages` and `bodies` make the requests.
"""
