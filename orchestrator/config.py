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
        description="HOST:PORT of the verifier, or several, separated by commas; dns:///NAME:PORT"
        " and file:///PATH stand for all addresses of the name or in the file",
    )
    drafter: Sources = Field(
        default="", description="addresses of drafters, written as for verifier; by default none"
    )
    tokenizer: hub.TokenizerPath = Field(description="model whose tokenizer is used")
    port: int = Field(
        default=50051, ge=0, le=65535, description="port of the client API; 0 takes a free one"
    )
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the OpenAI-compatible HTTP API; 0 takes a free one; by default there"
        " is no HTTP API",
    )
    ray: bool = Field(
        default=True, description="run cells on Ray Serve; otherwise run one cell in this process"
    )
    ray_address: str = Field(
        default="local", description="Ray cluster to deploy on; local starts a private cluster"
    )
    cells: int = Field(
        default=1, ge=1, description="number of processes on Ray Serve that answer requests"
    )
    share_ports: bool = Field(
        default=False,
        description="all cells of a machine listen at one port, and Linux spreads connections over "
        "them; by default each cell takes the next free port",
    )
    max_running: int = Field(
        default=32, ge=1, description="maximum number of requests that are decoded at once"
    )
    max_waiting: int = Field(
        default=256, ge=0, description="maximum number of requests that wait in the queue"
    )
    max_running_per_client: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of one client's requests decoded at once; default: max_running",
    )
    max_waiting_per_client: int | None = Field(
        default=None,
        ge=0,
        description="maximum number of one client's requests in the queue; default: half of"
        " max_waiting",
    )
    draft_levels: int = Field(
        default=MAX_LEVELS,
        ge=0,
        le=MAX_LEVELS,
        description="default for requests: maximum draft depth beyond the committed text;"
        " 0 decodes without drafts",
    )
    draft_branches: int = Field(
        default=4,
        ge=1,
        le=MAX_NODES,
        description="default for requests: children per draft node; 1 proposes chains",
    )
    draft_nodes: int = Field(
        default=MAX_NODES,
        ge=1,
        le=MAX_NODES,
        description="default for requests: maximum number of draft nodes beyond the committed text",
    )
    draft_method: Literal["tree", "medusa_lite", "suffix", "ngram"] = Field(
        default="tree",
        description="draft method; with tree or medusa_lite, drafters propose tokens in addition to"
        " the suffix method; with suffix (also called ngram), only the suffix method does",
    )
    draft_schedule: Literal["goodput", "constant", "heuristic"] = Field(
        default="goodput",
        description="policy that limits how far drafts run ahead: goodput, constant or heuristic",
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="the model's name for clients; by default the name of its directory or file",
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="where the defaults of a request's options come from; auto: from the model's"
        " generation_config.json; none: from the API",
    )
    tool_format: Literal["auto", "none", "hermes", "llama3", "mistral", "json"] = Field(
        default="auto",
        description="how the model writes tool calls; auto: as in its chat template; none: with"
        " tools, a request must force a call or forbid calls",
    )
    reasoning_format: Literal["auto", "none", "think"] = Field(
        default="auto",
        description="think: the text between <think> and </think> is separate from the answer;"
        " auto: think if the chat template has these tags",
    )
    clients: Path | None = Field(
        default=None,
        description="YAML file that lists the authorized clients with their tokens or certificates",
    )
    certificate_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="additional port for clients that authenticate with a certificate; requires the"
        " setting `clients` and TLS",
    )
    registration_token: Token | None = Field(
        default=None,
        description="token with which drafters register; without this setting and the clients"
        " setting, no drafter can register",
    )
    max_registered: int = Field(
        default=64, ge=1, description="maximum number of registered drafters"
    )
    lame_duck_seconds: float = Field(
        default=0.0,
        ge=0,
        description="seconds for which a stopping orchestrator still takes requests but reports"
        " NOT_SERVING, so that load balancers notice",
    )
    start_seconds: float = Field(
        default=120.0, gt=0, description="seconds to wait for a verifier at startup"
    )
    expected_verifiers: int | None = Field(
        default=None,
        ge=0,
        description="expected number of serving verifiers; if fewer serve, the others are reported"
        " as missing; default: one for each address or name",
    )
    expected_drafters: int | None = Field(
        default=None,
        ge=0,
        description="expected number of serving drafters; works like expected_verifiers",
    )

    @property
    def folder(self) -> Path:
        """The directory from which the tokenizer is loaded."""
        return self.tokenizer

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The sources of the verifiers' addresses. All verifiers serve the same model."""
        return tuple(self.verifier.split(","))

    @property
    def drafters(self) -> tuple[str, ...]:
        """The sources of the addresses of drafters."""
        return tuple(filter(None, self.drafter.split(",")))

    @property
    def expected(self) -> dict[str, int]:
        """The minimum number of replicas that should serve, for each of the roles `verifier` and
        `drafter`.
        """
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
        """How many requests of one client may run, and how many may wait. By default, one client
        may use all request slots, because the slots are shared fairly among clients that wait. By
        default, one client may fill only half of the queue, which leaves room for other clients.
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
                "registration_token cannot be used with clients: with clients, drafters register"
                " with their own tokens or certificates"
            )
        return self

    @model_validator(mode="after")
    def _shares_ports_that_are_known(self) -> OrchestratorConfig:
        if self.share_ports and self.registration_token:
            reached = "share_ports, because a drafter would register at only one of the cells"
            raise ValueError(f"registration_token cannot be used with {reached}")
        named = 0 not in (self.port, self.http_port, self.certificate_port)
        if self.share_ports and not named and not (self.ray and self.ray_address == "local"):
            raise ValueError("share_ports needs ports that are set, not 0")
        return self

    @model_validator(mode="after")
    def _one_cell_without_ray(self) -> OrchestratorConfig:
        if self.cells > 1 and not self.ray:
            raise ValueError(f"cells is {self.cells}, but more than one cell needs ray")
        return self


def check_token_mode(host: str) -> None:
    """Raise Unusable if other machines could reach Ray at `host` without a token. By default, Ray
    requires no token.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode.lower() != "token" and not is_loopback(host):
        problem = f"RAY_AUTH_MODE is {mode or 'not set'}, but Ray's host {host} is not loopback"
        raise Unusable(f"{problem}: whoever reaches Ray may run programs; set RAY_AUTH_MODE=token")
