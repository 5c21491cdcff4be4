"""How the orchestrator is configured: flags, then environment, then defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from protos.types import MAX_LEVELS, MAX_NODES


class OrchestratorConfig(BaseSettings):
    """One front end and its round workers. Environment: `TANDEM__ORCHESTRATOR__PORT`, ..."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    verifier: str
    drafter: str
    tokenizer: Path
    host: str = "127.0.0.1"
    port: int = Field(default=50051, ge=0, le=65535)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    workers: int = Field(default=1, ge=1)
    ray: bool = True
    ray_address: str = "local"
    max_running: int = Field(default=32, ge=1)
    max_waiting: int = Field(default=256, ge=0)
    draft_levels: int = Field(default=8, ge=0, le=MAX_LEVELS)
    draft_branches: int = Field(default=4, ge=1, le=MAX_NODES)
    draft_nodes: int = Field(default=32, ge=1, le=MAX_NODES)
    draft_schedule: Literal["goodput", "constant", "heuristic"] = "goodput"
    start_seconds: float = Field(default=120.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "warning"

    @model_validator(mode="after")
    def _one_local_worker(self) -> OrchestratorConfig:
        if self.workers > 1 and not self.ray:
            raise ValueError(f"workers is {self.workers}, above 1, which needs ray")
        return self
