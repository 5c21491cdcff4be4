"""The Python client: text from any of several front ends, through their failures."""

from tandem.client.client import AsyncClient, Stream
from tandem.client.sync import Client, SyncStream

__all__ = ["AsyncClient", "Client", "Stream", "SyncStream"]
