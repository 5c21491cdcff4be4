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
    """Return the default draft cost of a drafter that shares its processor with the verifier, or
    has its own.
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
        description="directory of a target with another tokenizer, or one that differs in a few"
        " tokens, for drafters",
    )
    register_at: Addresses = Field(
        default="",
        description="HOST:PORT of an orchestrator to register at, or several with commas, for"
        " drafters",
    )
    register_token: Token | None = Field(
        default=None,
        description="the orchestrator's registration_token, or the drafter's own as a client",
    )
    register_name: str | None = Field(
        default=None,
        pattern=f"^{NAME}$",
        description="name to register under; by default the host's name with a random part",
    )
    draft_cost: float = Field(
        default_factory=lambda: draft_cost(shared=cores.usable() < ENOUGH_CORES),
        ge=0,
        description="least seconds of the verifier that a drafter's second costs; 0: always draft;"
        f" by default {OWN_COST}, or {SHARED_COST} on fewer than {ENOUGH_CORES} cores",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None,
        description="float32, bfloat16, float16 or auto, as the model was saved; by default auto,"
        " but on a CPU float32 unless it was saved in bfloat16 and the processor has instructions"
        " for that",
    )
    weights: Literal["full", "int8"] = Field(
        default="full", description="int8: rounded to 8 bits, for drafters on a CPU"
    )
    exact: bool | None = Field(
        default=None,
        description="whether logits must not depend on the rest of a batch;"
        " by default only for a verifier",
    )
    self_test: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="what happens to a model whose logits are farther from those of transformers"
        " than rounding explains; warn: it is served with a warning, and never called exact",
    )
    device: str = Field(default="cpu", description="device: cpu, cuda, cuda:1, ...")
    numa: int | None = Field(
        default=None,
        ge=0,
        description="NUMA node whose processors, and so whose memory, the process uses; by default"
        " all",
    )
    threads: int = Field(
        default_factory=lambda known: cores.usable(numa=known.get("numa")),
        ge=1,
        description="CPU threads of the model; by default one per physical core of a NUMA node",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        description="processes among which the model's layers are split: on CUDA each has a device,"
        " cuda:0 and so on; on a CPU they share the threads",
    )
    max_sessions: int = Field(default=64, ge=1, description="open sessions")
    kv_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="memory for keys and values, e.g. 4GiB; by default kv_share",
    )
    kv_share: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="share of the memory left beside the weights that keys and values get,"
        " without kv_bytes",
    )
    max_batch_sessions: int = Field(default=32, ge=1, description="sessions in one forward pass")
    max_batch_tokens: int = Field(default=512, ge=16, description="tokens in one forward pass")
    prompt_slack: float = Field(
        default=0.5, ge=0, description="how much longer a pass may take to let new prompts in"
    )
    prompt_seconds: float = Field(
        default=0.25, gt=0, description="about how long a pass over prompts alone takes"
    )
    context_length: int | None = Field(
        default=None,
        ge=2,
        description="tokens per session; by default the model's, or what the memory for keys and"
        " values holds",
    )
    recent_tokens: int = Field(
        default=1 << 16,
        ge=0,
        description="tokens of the newest answers of each scope, in which a verifier looks drafts"
        " up; 0: none",
    )
    session_ttl: float = Field(
        default=120.0, gt=0, description="seconds until an idle session is reclaimed"
    )
    evict_after: float = Field(
        default=5.0, ge=0, description="seconds until an idle session may make space for another"
    )

    @property
    def peers(self) -> tuple[str, ...]:
        """The common names of certificates that may call, with TLS."""
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
