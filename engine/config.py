"""How a model service is configured: flags, then environment, then defaults.

Validated where it is built and passed down; nothing else reads the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from protos.errors import Unusable


class ModelServiceConfig(BaseSettings):
    """One drafter or verifier process. Environment: `TANDEM__DRAFTER__PORT`, `TANDEM__VERIFIER__THREADS`, ..."""

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


def configured(role: str, flags: dict[str, object]) -> ModelServiceConfig:
    """The configuration of a role from the flags that were given; raises Unusable naming every bad field."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return ModelServiceConfig(_env_prefix=f"TANDEM__{role.upper()}__", **given)  # type: ignore[arg-type, call-arg]
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise Unusable(f"{role}: {'; '.join(problems)}") from error
