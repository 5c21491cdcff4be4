"""The orchestrator: the client API over gRPC and HTTP, and the relay of commits and proposals for
many requests. The orchestrator runs no model, so it must not import the engine, PyTorch or the
other services. Only `launcher`, `cells` and `control_plane` may import Ray. To understand this
package, first read `server`, which puts one cell together, or `rounds.relay`, which shows what
happens to one request.
"""
