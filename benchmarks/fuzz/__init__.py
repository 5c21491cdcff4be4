"""Send generated requests: whatever a caller sends, a service must answer and live.

The requests must depend on schemas and seeds alone, so that each can be sent again by its number.
Start reading in `__main__`; `messages` and `bodies` make the requests.
"""
