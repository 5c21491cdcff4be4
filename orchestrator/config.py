"""The configuration of the orchestrator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tandem.protos import hub
from tandem.protos.address import is_loopback
from tandem.protos.errors import Unusable
from tandem.protos.service.config import ServiceConfig, Token
from tandem.protos.service.listening import Sources
from tandem.protos.types import MAX_LEVELS, MAX_NODES


class OrchestratorConfig(ServiceConfig):
    """The settings of a cell, or of several cells on Ray Serve."""

    verifier: Sources = Field(
        min_length=1,
        description="HOST:PORT of the verifier, or several with commas; dns:///NAME:PORT and "
        "file:///PATH stand for all addresses there",
    )
    drafter: Sources = Field(
        default="", description="addresses of drafters, in the form of verifier; none by default"
    )
    tokenizer: hub.TokenizerPath = Field(description="model whose tokenizer is used")
    port: int = Field(
        default=50051, ge=0, le=65535, description="port of the client API; 0 takes a free one"
    )
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the OpenAI-compatible HTTP API; 0 takes a free one, none by default",
    )
    ray: bool = Field(default=True, description="run cells on Ray Serve, not one as this process")
    ray_address: str = Field(
        default="local", description="Ray cluster to deploy on; local starts a private one"
    )
    cells: int = Field(default=1, ge=1, description="processes on Ray Serve that answer requests")
    share_ports: bool = Field(
        default=False,
        description="all cells of a machine listen at one port, and Linux spreads connections over "
        "them; by default each takes the next free port",
    )
    max_running: int = Field(default=32, ge=1, description="requests that are decoded at once")
    max_waiting: int = Field(default=256, ge=0, description="requests that may wait for a place")
    max_running_per_client: int | None = Field(
        default=None, ge=1, description="requests of one client decoded at once; by default all"
    )
    max_waiting_per_client: int | None = Field(
        default=None, ge=0, description="requests of one client that may wait; by default half"
    )
    draft_levels: int = Field(
        default=MAX_LEVELS,
        ge=0,
        le=MAX_LEVELS,
        description="levels that proposals may run ahead; 0 decodes plainly",
    )
    draft_branches: int = Field(
        default=4, ge=1, le=MAX_NODES, description="children per node; 1 proposes chains"
    )
    draft_nodes: int = Field(
        default=MAX_NODES, ge=1, le=MAX_NODES, description="proposed nodes ahead of the text"
    )
    draft_method: Literal["tree", "medusa_lite", "suffix", "ngram"] = Field(
        default="tree",
        description="how drafts are found: tree or medusa_lite, by drafters, and by suffix beside"
        " them; or suffix (ngram is the same), without drafters",
    )
    draft_schedule: Literal["goodput", "constant", "heuristic"] = Field(
        default="goodput", description="schedule of drafts: goodput, constant or heuristic"
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="the model's name for clients; by default that of its directory or file",
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="defaults of a request's options; auto: those of the model's"
        " generation_config.json; none: the API's",
    )
    tool_format: Literal["auto", "none", "hermes", "llama3", "mistral", "json"] = Field(
        default="auto",
        description="how the model writes tool calls; auto: as in its chat template; none: requests"
        " with tools are refused",
    )
    reasoning_format: Literal["auto", "none", "think"] = Field(
        default="auto",
        description="think: the text between <think> and </think> is separate from the answer;"
        " auto: think if the chat template has these tags",
    )
    clients: Path | None = Field(
        default=None,
        description="YAML file of the clients that may call, by token or certificate",
    )
    certificate_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="another port for clients with a certificate; needs clients and TLS",
    )
    registration_token: Token | None = Field(
        default=None, description="token that drafters register with; by default none may register"
    )
    max_registered: int = Field(default=64, ge=1, description="drafters registered at once")
    lame_duck_seconds: float = Field(
        default=0.0,
        ge=0,
        description="how long a stopping orchestrator still takes requests, so that load balancers"
        " notice that it is NOT_SERVING",
    )
    start_seconds: float = Field(
        default=120.0, gt=0, description="how long to wait for the verifier at the start"
    )
    expected_verifiers: int | None = Field(
        default=None,
        ge=0,
        description="how many verifiers should serve; fewer are reported as missing. By default one"
        " for each address or name",
    )
    expected_drafters: int | None = Field(
        default=None,
        ge=0,
        description="how many drafters should serve, by the same rule as for verifiers",
    )

    @property
    def folder(self) -> Path:
        """The directory from which the tokenizer is loaded."""
        return self.tokenizer

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The sources of the addresses of verifiers, which serve the same model."""
        return tuple(self.verifier.split(","))

    @property
    def drafters(self) -> tuple[str, ...]:
        """The sources of the addresses of drafters."""
        return tuple(filter(None, self.drafter.split(",")))

    @property
    def expected(self) -> dict[str, int]:
        """The fewest verifiers and drafters that are to serve, by their roles."""
        asked = {
            "verifier": (self.expected_verifiers, self.verifiers),
            "drafter": (self.expected_drafters, self.drafters),
        }
        return {
            role: len(set(sources)) if number is None else number
            for role, (number, sources) in asked.items()
        }

    @property
    def each_client(self) -> tuple[int, int]:
        """How many requests of one client may run and wait. By default running requests have no
        bound per client, because waiting clients share the places fairly. By default one client may
        fill only half of the queue, which leaves room for others.
        """
        running, waiting = self.max_running_per_client, self.max_waiting_per_client
        return running or self.max_running, self.max_waiting // 2 if waiting is None else waiting

    @model_validator(mode="after")
    def _has_what_a_certificate_port_needs(self) -> OrchestratorConfig:
        if self.certificate_port is not None and not (self.clients and self.tls_ca):
            raise ValueError(
                "certificate_port needs clients and tls_ca: without clients, every port asks for"
                " certificates"
            )
        return self

    @model_validator(mode="after")
    def _has_one_way_to_register(self) -> OrchestratorConfig:
        if self.registration_token and self.clients:
            raise ValueError(
                "registration_token cannot be used with clients: they register with their own"
                " tokens or certificates"
            )
        return self

    @model_validator(mode="after")
    def _shares_ports_that_are_known(self) -> OrchestratorConfig:
        if self.share_ports and self.registration_token:
            reached = "share_ports: a drafter that registers would reach one cell of all"
            raise ValueError(f"registration_token cannot be used with {reached}")
        named = 0 not in (self.port, self.http_port, self.certificate_port)
        if self.share_ports and not named and not (self.ray and self.ray_address == "local"):
            raise ValueError("share_ports needs ports that are set, not 0")
        return self

    @model_validator(mode="after")
    def _one_cell_without_ray(self) -> OrchestratorConfig:
        if self.cells > 1 and not self.ray:
            raise ValueError(f"cells is {self.cells}, above 1, which needs ray")
        return self


def check_token_mode(host: str) -> None:
    """Raise Unusable for a Ray beyond loopback that asks for no token, as it does by default."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode.lower() != "token" and not is_loopback(host):
        problem = f"RAY_AUTH_MODE is {mode or 'not set'}, and Ray at {host} beyond loopback"
        raise Unusable(f"{problem}: who reaches it may run programs on it; set it to token")
