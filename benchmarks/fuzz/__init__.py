"""Send generated requests: whatever a caller sends, a service must answer and keep running.

A request must depend only on the schemas, the seed and its number, so that it can be sent again.
Start reading in `__main__`; `messages` and `bodies` make the requests.
"""
