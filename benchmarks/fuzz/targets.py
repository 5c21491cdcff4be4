"""The targets of generated requests: RPC methods on gRPC ports, and paths on HTTP ports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import httpx2
from grpc import aio

from tandem.benchmarks.fuzz.bodies import body
from tandem.benchmarks.fuzz.calls import Method, call

SECONDS = 10.0  # timeout of an HTTP request
CONFIG = "tokenizer_config.json"
TEMPLATE = """{# tools <tool_call> <think> #}{% for m in messages %}
{{- m.role ~ ': ' ~ m.content | trim ~ tone }}
{% endfor %}"""
JSON = {"content-type": "application/json"}
LEAVING_SHARE = 0.1  # share of HTTP answers that the client does not read


def with_template(model: Path, folder: Path) -> Path:
    """Fill a folder with links to the files of a model, and add a chat template."""
    for file in model.iterdir():
        if file.name != CONFIG:
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((model / CONFIG).read_text("utf-8")) if (model / CONFIG).exists() else {}
    (folder / CONFIG).write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


class Target(Protocol):
    """A method or path to which generated requests are sent."""

    @property
    def name(self) -> str:
        """The name under which results of the target are reported."""

    async def ask(self, rng: Random) -> tuple[str, str]:
        """Send one generated request. Returns the status of the answer, and its message or text."""


@dataclass(frozen=True, slots=True)
class Port:
    """One RPC method that is served on a gRPC port."""

    channel: aio.Channel
    method: Method
    metadata: Any = ()

    @property
    def name(self) -> str:
        """The name of the method without its package."""
        return self.method.path.rpartition(".")[2]

    async def ask(self, rng: Random) -> tuple[str, str]:
        """Call the method with generated messages. Returns the status and the error message."""
        return await call(self.channel, self.method, self.method.messages(rng), self.metadata)


@dataclass(frozen=True, slots=True)
class HttpPort:
    """An HTTP port, or one path that is served on it."""

    url: str
    name: str = ""
    client: httpx2.AsyncClient = field(
        default_factory=lambda: httpx2.AsyncClient(timeout=SECONDS, trust_env=False)
    )

    def at(self, path: str) -> HttpPort:
        """Return a target for one path on this HTTP port."""
        return HttpPort(self.url, path, self.client)

    async def ask(self, rng: Random) -> tuple[str, str]:
        """Post one generated body. Returns the status and the text of the response."""
        try:
            return await self._ask(rng)
        except httpx2.TimeoutException:
            return f"longer than {SECONDS:g} s", ""
        except httpx2.HTTPError as error:
            return "UNKNOWN", repr(error)

    async def _ask(self, rng: Random) -> tuple[str, str]:
        content, url = body(self.name, rng), self.url + self.name
        async with self.client.stream("POST", url, content=content, headers=JSON) as response:
            if rng.random() < LEAVING_SHARE:
                return str(response.status_code), ""
            text = (await response.aread()).decode(errors="replace")
        failed = '"type":"server_error"' in text.replace(" ", "") and response.status_code == 200
        return "500" if failed else str(response.status_code), text

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self.client.aclose()
