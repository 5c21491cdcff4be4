"""The HTTP pages that describe a service: its model, health, version and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem.orchestrator.http import errors
from tandem.orchestrator.http.delivery import Frontend
from tandem.protos.service.vllm_names import VLLMNames
from tandem.protos.types import ModelDescription

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OWNER = "tandem"


@dataclass(frozen=True, slots=True)
class AllNames:
    """Prometheus collector of a registry's metrics, under Tandem's names and under vLLM's names."""

    registry: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics under Tandem's names and under vLLM's names. The Prometheus encoder
        calls this method.
        """
        yield from self.registry.collect()
        yield from VLLMNames(self.registry).collect()


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of the service of one model. `identify` is called with every request except those
    for `/health`, and raises Unauthenticated or PermissionDenied if the caller is refused.
    """

    frontend: Frontend
    model: ModelDescription
    registry: CollectorRegistry
    identify: Callable[[Request], object]
    # time at which the service started, in seconds since 1970
    began: int = field(default_factory=lambda: int(time.time()))

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/metrics", self._metrics),
        ]

    async def _models(self, request: Request) -> Response:
        self.identify(request)
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Response:
        self.identify(request)
        if (name := request.path_params["name"]) != self.model.name:
            problem = f"model is {name!r}, but the served model is {self.model.name!r}"
            found = errors.problem(HTTPStatus.NOT_FOUND, problem, "model", "model_not_found")
            return JSONResponse(found, HTTPStatus.NOT_FOUND)
        return JSONResponse(self._described())

    def _described(self) -> dict[str, object]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.began,
            "owned_by": OWNER,
            "max_model_len": self.model.context_length,
        }

    async def _health(self, request: Request) -> Response:
        serving = self.frontend.serving() and not self.frontend.drain.leaving
        return JSONResponse({}, HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _version(self, request: Request) -> Response:
        self.identify(request)
        return JSONResponse({"version": version("tandem-serving")})

    async def _metrics(self, request: Request) -> Response:
        """Return the same metrics as the metrics port, under Tandem's names and vLLM's names."""
        self.identify(request)
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        text = await asyncio.to_thread(encode, AllNames(self.registry))
        return Response(text, headers={"content-type": kind})
