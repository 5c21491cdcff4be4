"""Send generated requests: whatever a caller sends, a service must answer and keep running.

A generated request must depend only on the schemas, the seed and its index, so that it can be
generated and sent again. Start reading in `__main__`; `messages` and `bodies` make the requests.
"""
