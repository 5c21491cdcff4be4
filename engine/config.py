"""How a model service is configured: flags, then environment, then defaults.

Validated where it is built and passed down; nothing else reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ModelServiceConfig(BaseSettings):
    """One drafter or verifier process. Environment: `TANDEM__DRAFTER__PORT`,
    `TANDEM__VERIFIER__THREADS`, ...
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    model: Path
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)
    max_sessions: int = Field(default=64, ge=1)
    max_batch_sessions: int = Field(default=32, ge=1)
    context_length: int | None = Field(default=None, ge=2)
    session_ttl: float = Field(default=120.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
