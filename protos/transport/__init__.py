"""gRPC channels, servers, statuses and health."""
