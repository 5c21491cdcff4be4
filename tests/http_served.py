"""An orchestrator with both of its client APIs, for a model with a chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, AsyncStream
from prometheus_client import CollectorRegistry

from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.drain import Drain
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2_grpc
from tests.served import Services

TEMPLATE = """
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('Only system, user and assistant have a part.') }}
    {%- endif %}
    {{- message.role ~ ': ' ~ message.content | trim ~ '\\n' }}
{%- endfor %}
{%- if tone is defined %}{{ tone ~ '\\n' }}{% endif %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""

PROMPT = "Once upon a time, there was a little girl named Lily. She"
CHAT: Any = [
    {"role": "system", "content": "Tell a story."},
    {"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]},
]
TOKENS = 16
WRITTEN = "system: Tell a story.\nuser: Once upon a time\nassistant:"


@dataclass(frozen=True)
class Door:
    """The addresses of both APIs."""

    url: str
    stub: Any
    address: str
    registry: CollectorRegistry


def with_template(model: Path, folder: Path, template: str = TEMPLATE) -> Path:
    """Write the tokenizer of a model with a chat template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"chat_template": template}
    file.write_text(json.dumps(config))
    return folder


@asynccontextmanager
async def serve_http(
    services: Services, tokenizer: Path, drain: Drain | None = None, **options: Any
) -> AsyncIterator[Door]:
    """Run one orchestrator, without Ray."""
    port, registry = rpc.free_port("127.0.0.1"), CollectorRegistry()
    config = OrchestratorConfig(
        verifier=services.verifier,
        drafter=services.drafter,
        tokenizer=tokenizer,
        port=0,
        http_port=port,
        ray=False,
        **options,
    )
    async with server.serving(config, registry, drain) as address, rpc.connect(address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        yield Door(f"http://127.0.0.1:{port}", stub, address, registry)


async def complete(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.completions.create(
        **{"model": "target", "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS} | options
    )


async def converse(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(
        **{"model": "target", "messages": CHAT, "temperature": 0, "max_tokens": TOKENS} | options
    )


async def leave(stream: AsyncStream[Any]) -> None:
    """Close an answer before its end, with every generator that reads it.

    A generator that is not closed may be finalized on a model's thread while the event loop closes
    it: "async generator already executing".
    """
    await stream.close()
    with pytest.raises(openai.APIConnectionError):
        async for _ in stream:
            pass
