"""The Python client requests answers from any of several front ends. If a front end fails, the
client continues at another one. The client knows only the API's contract, so it must not import a
service, the engine, PyTorch or Ray. To understand this package, read `client` first for the asyncio
client. `sync` wraps that client for programs without asyncio.
"""

from tandem.client.client import AsyncClient, Stream
from tandem.client.sync import Client, SyncStream

__all__ = ["AsyncClient", "Client", "Stream", "SyncStream"]
