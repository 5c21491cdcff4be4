"""Both client APIs in front of a scripted model; everything except the model is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from tandem import models
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.servicer import OrchestratorService
from tandem.orchestrator.http import server
from tandem.orchestrator.http.app import HttpApi
from tandem.orchestrator.http.delivery import Frontend
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.chat import ChatTemplate, Formats
from tandem.orchestrator.requests.checks import ServedModel
from tandem.orchestrator.requests.text import load_tokenizer, special_tokens
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.grammar import Grammar
from tandem.protos.service.drain import Drain
from tandem.protos.streams import Commit
from tandem.protos.transport import rpc
from tandem.protos.types import DraftShape, ModelDescription, TokenLogprobs
from tests.services.runner import Runner

END, CONTEXT = 0, 4096
TEMPLATE = """{% if tools %}{{ tools | tojson }}{% endif %}
{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}
called {{ call.function.name }} with {{ call.function.arguments.city }}{% endfor %}
{{ m.reasoning_content }}
{% endfor %}"""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA},
}
QUESTION: Any = {"role": "user", "content": "How is it in Zürich?"}
CALL = '{"name": "weather", "arguments": {"city": "Zürich"}}'
WRITTEN = {
    "hermes": f"\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
    "mistral": f"[TOOL_CALLS][{CALL}, {CALL}]",
    "llama3": f"<|python_tag|>{CALL}; {CALL}",
    "json": f"\n{CALL}\n{CALL}",
}
Says = Callable[[str], str]


@dataclass
class Sayer(Runner):
    """Continues each prompt as a test tells it, some tokens per step."""

    tokenizer: Tokenizer
    says: Says
    size: int = 3

    def __post_init__(self) -> None:
        super().__init__()
        self.prompts: list[str] = []
        self.grammars: list[Grammar | None] = []

    async def steps(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        self.prompts.append(self.tokenizer.decode(request.prompt, skip_special_tokens=False))
        self.grammars.append(request.sampling.grammar)
        text = self.says(self.prompts[-1])
        script = [*self.tokenizer.encode(text, add_special_tokens=False).ids, END]
        script = script[: request.max_new_tokens]
        for at in range(len(request.completion), len(script), self.size):
            tokens = tuple(script[at : at + self.size])
            stop = END in tokens
            finish = Finish.LENGTH if at + self.size >= len(script) else None
            asked = request.sampling.logprobs is not None
            commit = Commit(
                0, tokens, logprobs=(TokenLogprobs(-1.0),) * len(tokens) if asked else ()
            )
            yield Step(
                commit,
                finish=Finish.STOP if stop else finish,
                matched_token_id=END if stop else None,
            )
            await asyncio.sleep(0)


@dataclass
class Saying:
    """The answers, and the official client of the port that serves them."""

    answers: Answers
    sayer: Sayer
    client: AsyncOpenAI
    url: str
    address: str  # of gRPC

    async def chat(self, messages: list[Any], **options: Any) -> Any:
        """Return what the client gets."""
        found = await self.client.chat.completions.create(
            model="said", messages=messages, **options
        )
        return found if options.get("stream") else found.choices[0]


@asynccontextmanager
async def saying(
    says: Says, template: str, formats: Formats | None = None, special: tuple[str, ...] = ()
) -> AsyncIterator[Saying]:
    """Serve such a model; its tokenizer has the `special` tokens in addition."""
    tokenizer = load_tokenizer(models.TARGET)
    tokenizer.add_special_tokens(list(special))
    size = tokenizer.get_vocab_size()
    model = ModelDescription("said", "", size, CONTEXT, (END,), "", "", exactness="exact")
    served = ServedModel(model, DraftShape(4), CONTEXT * 16, special_tokens(tokenizer))
    registry, sayer = CollectorRegistry(), Sayer(tokenizer, says)
    metrics = FrontMetrics(registry)
    admission = Admission(Limits(8, 8), Limits(8, 8, "_per_client"), metrics)
    chat = ChatTemplate(template, {}, formats or Formats())
    answers = Answers(sayer, tokenizer, served, metrics, admission, chat=chat)
    drain, ends, unused = Drain(), RequestLog(), None
    front = Frontend(answers, drain, ends, lambda: True)
    service = OrchestratorService(answers, cast(Any, unused), drain, ends)
    app = HttpApi(front, model, tokenizer, registry).app()
    async with (
        server.serving(app, "127.0.0.1", 0) as url,
        rpc.serving("127.0.0.1", 0, (service,)) as address,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Saying(answers, sayer, client, url, address)


def says(form: str) -> Says:
    """Return a model that first calls two tools, and then answers from their results."""

    def say(prompt: str) -> str:
        return "It rains." if "tool: " in prompt else f"Let me see.{WRITTEN[form]}"

    return say
