"""The Python client: it gets text from any of several front ends, and survives their failures."""

from tandem.client.client import AsyncClient, Stream
from tandem.client.sync import Client, SyncStream

__all__ = ["AsyncClient", "Client", "Stream", "SyncStream"]
