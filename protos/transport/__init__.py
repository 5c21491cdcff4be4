"""gRPC as all services use it: channels and servers, TLS, guards, statuses, health, heartbeats and
metrics of calls. The package must not know any service or message of Tandem's own. To understand
this package, read `rpc` first, which opens every port and every channel.
"""
