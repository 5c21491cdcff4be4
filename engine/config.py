"""The configuration of a model service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, model_validator

from tandem.protos import hub
from tandem.protos.address import check_encrypted
from tandem.protos.service import cores
from tandem.protos.service.config import ServiceConfig, Token
from tandem.protos.service.listening import Addresses
from tandem.protos.wire.registration import NAME

OWN_COST, SHARED_COST = 0.05, 0.25  # found by `python -m tandem.benchmarks.goodput`
ENOUGH_CORES = 4  # with so many cores, a drafter on one core takes little from other processes


def draft_cost(shared: bool) -> float:
    """Return the default draft cost of a drafter. The cost is higher if the drafter and the
    verifier share a processor.
    """
    return SHARED_COST if shared else OWN_COST


class ModelServiceConfig(ServiceConfig):
    """The settings of one drafter or verifier process."""

    model: hub.ModelPath = Field(
        description="Hugging Face model directory, GGUF file, or name on the hub"
    )
    allowed_peers: str = Field(
        default="orchestrator",
        min_length=1,
        description="common names of the certificates that may call, separated by commas",
    )
    speaks: hub.TokenizerPath | None = Field(
        default=None,
        description="for drafters: directory of a target whose tokenizer differs from the model's,"
        " entirely or in a few tokens",
    )
    register_at: Addresses = Field(
        default="",
        description="for drafters: HOST:PORT of each orchestrator to register at, separated by"
        " commas",
    )
    register_token: Token | None = Field(
        default=None,
        description="for drafters: the orchestrator's registration_token, or this drafter's own"
        " token if the orchestrator lists its clients",
    )
    register_name: str | None = Field(
        default=None,
        pattern=f"^{NAME}$",
        description="for drafters: name to register under; by default the host's name with a random"
        " part",
    )
    draft_cost: float = Field(
        default_factory=lambda: draft_cost(shared=cores.usable() < ENOUGH_CORES),
        ge=0,
        description="for drafters: how many seconds of the verifier a second of the drafter costs"
        f" at least; 0: always draft; by default {OWN_COST}, or {SHARED_COST} on fewer than"
        f" {ENOUGH_CORES} cores",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None,
        description="number format: float32, bfloat16, float16, or auto for the format in which the"
        " model was saved; by default auto, but float32 on a CPU unless the model was saved in"
        " bfloat16 and the processor has instructions for bfloat16",
    )
    weights: Literal["full", "int8"] = Field(
        default="full", description="int8 rounds the weights to 8 bits, for drafters on a CPU"
    )
    exact: bool | None = Field(
        default=None,
        description="whether a session's logits must be independent of the rest of its batch; by"
        " default true for a verifier and false for a drafter",
    )
    self_test: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="what to do if the model's logits differ from those of transformers by more"
        " than rounding explains; refuse: do not serve it; warn: serve it with a warning, and never"
        " call it exact",
    )
    device: str = Field(default="cpu", description="device: cpu, cuda, cuda:1, ...")
    numa: int | None = Field(
        default=None,
        ge=0,
        description="NUMA node whose processors and memory the process uses; by default all nodes",
    )
    threads: int = Field(
        default_factory=lambda known: cores.usable(numa=known.get("numa")),
        ge=1,
        description="CPU threads of the model; by default one per physical core of a NUMA node",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        description="number of processes that divide each layer of the model among them; on CUDA,"
        " the processes use the devices cuda:0, cuda:1, ...; on a CPU, they share the threads",
    )
    max_sessions: int = Field(default=64, ge=1, description="open sessions")
    kv_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="memory for keys and values, e.g. 4GiB; by default kv_share decides",
    )
    kv_share: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="keys and values get this share of the memory that is free after the weights"
        " are loaded; ignored if kv_bytes is set",
    )
    max_batch_sessions: int = Field(default=32, ge=1, description="sessions in one forward pass")
    max_batch_tokens: int = Field(default=512, ge=16, description="tokens in one forward pass")
    prompt_slack: float = Field(
        default=0.5, ge=0, description="by what share new prompts may lengthen a pass"
    )
    prompt_seconds: float = Field(
        default=0.25, gt=0, description="seconds that a pass over prompts alone should take"
    )
    context_length: int | None = Field(
        default=None,
        ge=2,
        description="most tokens of a session; by default the model's context length, or what the"
        " memory for keys and values holds if that is less",
    )
    recent_tokens: int = Field(
        default=1 << 16,
        ge=0,
        description="for verifiers: how many tokens of the newest answers are kept for each scope,"
        " to look up drafts in them; 0: none",
    )
    session_ttl: float = Field(
        default=120.0, gt=0, description="seconds until an idle session is reclaimed"
    )
    evict_after: float = Field(
        default=5.0, ge=0, description="seconds until an idle session may be evicted for another"
    )

    @property
    def peers(self) -> tuple[str, ...]:
        """The common names of the certificates that may call the service if it uses TLS."""
        return tuple(name.strip() for name in self.allowed_peers.split(","))

    @property
    def rank_threads(self) -> int:
        """The number of CPU threads of each rank, which share `threads`."""
        return max(1, self.threads // self.tensor_parallel)

    @property
    def folder(self) -> Path:
        """The model directory or file that is loaded."""
        return self.model

    def prepare(self) -> None:
        """Bind the process to its NUMA node, if one is set; raises Unusable."""
        if self.numa is not None:
            cores.bind(self.numa)

    @model_validator(mode="after")
    def _registers_with_a_token(self) -> ModelServiceConfig:
        if self.register_at and not (self.register_token or self.tls):
            raise ValueError("register_at needs register_token, or tls_cert, tls_key and tls_ca")
        if self.register_token and not (self.tls or self.insecure):
            check_encrypted("register_token", filter(None, self.register_at.split(",")))
        return self

    @model_validator(mode="after")
    def _evicts_before_it_reclaims(self) -> ModelServiceConfig:
        if self.evict_after >= self.session_ttl:
            limit = f"session_ttl, {self.session_ttl}"
            raise ValueError(f"evict_after {self.evict_after} must be below {limit}")
        return self
