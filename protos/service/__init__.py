"""The parts that every service process needs: settings, command line, logs and traces, pages over
HTTP, draining, processor cores. The package must not know which service runs, or how calls are made
and encoded. To understand this package, read `command` first, which runs a service from its command
line to its end.
"""
