"""How a service is configured: flags, then environment, then defaults.

Validated where it is built and passed down; nothing else reads these settings.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from protos.errors import Unusable


class ServiceConfig(BaseSettings):
    """What every service is told. Environment: `TANDEM__VERIFIER__PORT`, ..."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=0, ge=0, le=65535, description="0 takes a free port")
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="for Prometheus; 0 takes a free one"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="debug, info, warning or error"
    )

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The directory that is loaded."""


Config = TypeVar("Config", bound=ServiceConfig)


def configured(kind: type[Config], role: str, flags: Mapping[str, object]) -> Config:
    """A role's settings: the flags that were given, then `TANDEM__<ROLE>__...`, then defaults.

    Raises Unusable naming every bad field.
    """
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    given["_env_prefix"] = f"TANDEM__{role.upper()}__"
    try:
        return kind(**given)
    except ValidationError as error:
        problems = (": ".join([*map(str, e["loc"]), e["msg"]]) for e in error.errors())
        raise Unusable(f"{role}: {'; '.join(problems)}") from error
