"""gRPC as all services use it: channels and servers, TLS, guards, statuses, health, heartbeats and
metrics of calls. The package must not know any service or message of Tandem's own. Start reading in
`rpc`, which opens every port and every channel.
"""
