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

OWN_COST, SHARED_COST = 0.05, 0.25  # measured with `python -m tandem.benchmarks.goodput`
ENOUGH_CORES = 4  # with this many cores, a drafter on one core hardly slows other processes


def draft_cost(shared: bool) -> float:
    """Return the default of the setting `draft_cost`. The default is higher if the drafter and the
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
        description="common names of the certificates with which clients may call this service,"
        " separated by commas",
    )
    speaks: hub.TokenizerPath | None = Field(
        default=None,
        description="for drafters: directory of the target model, if its tokenizer differs from the"
        " drafter's tokenizer, entirely or in a few tokens",
    )
    register_at: Addresses = Field(
        default="",
        description="for drafters: HOST:PORT of each orchestrator to register at, separated by"
        " commas",
    )
    register_token: Token | None = Field(
        default=None,
        description="for drafters: token for the registration: the orchestrator's"
        " registration_token, or the drafter's own token if the orchestrator has a clients file",
    )
    register_name: str | None = Field(
        default=None,
        pattern=f"^{NAME}$",
        description="for drafters: name to register under; by default the host name with a random"
        " suffix",
    )
    draft_cost: float = Field(
        default_factory=lambda: draft_cost(shared=cores.usable() < ENOUGH_CORES),
        ge=0,
        description="for drafters: a second of drafting counts as at least this many seconds of the"
        " verifier when the drafter decides whether to draft; 0: always draft; by default"
        f" {OWN_COST}, or {SHARED_COST} on fewer than {ENOUGH_CORES} cores",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None,
        description="number format: float32, bfloat16, float16, or auto for the format in which the"
        " model was saved; by default auto, but float32 on a CPU unless the model was saved in"
        " bfloat16 and the processor has instructions for bfloat16",
    )
    weights: Literal["full", "int8"] = Field(
        default="full",
        description="full: use the weights as they are; int8: round the weights to 8 bits, for"
        " drafters on a CPU",
    )
    exact: bool | None = Field(
        default=None,
        description="whether a session's logits must be independent of the rest of its batch; by"
        " default true for a verifier and false for a drafter",
    )
    self_test: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="what to do if the model's logits differ from those of transformers by more"
        " than rounding explains; refuse: do not serve the model; warn: log a warning, and serve"
        " the model as not exact",
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
    max_sessions: int = Field(default=64, ge=1, description="maximum number of open sessions")
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
    max_batch_sessions: int = Field(
        default=32, ge=1, description="maximum number of sessions in one forward pass"
    )
    max_batch_tokens: int = Field(
        default=512, ge=16, description="maximum number of tokens in one forward pass"
    )
    prompt_slack: float = Field(
        default=0.5,
        ge=0,
        description="by what fraction new prompts may lengthen a forward pass, e.g. 0.5 for 50%",
    )
    prompt_seconds: float = Field(
        default=0.25,
        gt=0,
        description="target duration, in seconds, of a forward pass that contains only prompts",
    )
    context_length: int | None = Field(
        default=None,
        ge=2,
        description="maximum number of tokens of a session; by default the model's context length,"
        " or less if the memory for keys and values holds less",
    )
    recent_tokens: int = Field(
        default=1 << 16,
        ge=0,
        description="for verifiers: how many tokens of recent answers are kept for each scope, so"
        " that drafts can be looked up in them; 0: none",
    )
    session_ttl: float = Field(
        default=120.0, gt=0, description="seconds until an idle session is reclaimed"
    )
    evict_after: float = Field(
        default=5.0,
        ge=0,
        description="seconds until an idle session may be evicted to make room for another session",
    )

    @property
    def peers(self) -> tuple[str, ...]:
        """The common names of the certificates that may call the service if it uses TLS."""
        return tuple(name.strip() for name in self.allowed_peers.split(","))

    @property
    def rank_threads(self) -> int:
        """The number of CPU threads of each rank; all ranks together have `threads` threads."""
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
