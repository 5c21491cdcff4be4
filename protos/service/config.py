"""Reads the configuration of a service from flags, the environment, a YAML file and defaults.

Flags take precedence over the environment, and the environment over the file. The configuration is
validated here and passed down; no other code reads flags, environment or file.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from argparse import Action, HelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from tandem.protos.errors import Unusable
from tandem.protos.service.listening import ListeningSettings

PREFIX = "TANDEM__"
FILE = "TANDEM_CONFIG"

MIN_LENGTH, MAX_LENGTH = 16, 256  # minimum and maximum length of an access token
FOLLOWING_ERROR = "default_factory_not_called"  # pydantic reports it if another field is invalid
# types of errors whose message shows the invalid value, because it is never a secret token
SHOWABLE = ("int_", "float_", "bool_", "byte_", "literal_", "greater_", "less_", "string_pattern_")


def _secret(given: SecretStr) -> SecretStr:
    """Check that an access token can be sent in call metadata, and is too long to be guessed."""
    token = given.get_secret_value()
    if not (MIN_LENGTH <= len(token) <= MAX_LENGTH and re.fullmatch(r"[!-~]+", token)):
        raise ValueError(
            f"needs {MIN_LENGTH} to {MAX_LENGTH} ASCII characters, none of them a space"
        )
    return given


Token = Annotated[SecretStr, AfterValidator(_secret)]
Section = Annotated[dict[str, str | Any], BeforeValidator(lambda section: section or {})]


class ServiceConfig(ListeningSettings):
    """The settings that every service has. A verifier reads `port` from TANDEM__VERIFIER__PORT."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
    )

    config: Path | None = Field(
        default=None,
        description=f"YAML file with a section for each role; by default the one that {FILE} names",
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="port of the service; 0 takes a free one"
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="port of the metrics page; 0 takes a free one"
    )
    otlp_endpoint: str = Field(
        default="", description="URL of an OpenTelemetry collector for traces; none by default"
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="time for running work to finish when the service stops"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="log level: debug, info, warning or error"
    )
    log_format: Literal["json", "console"] | None = Field(
        default=None, description="log format: json or console; by default console in a terminal"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **more: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the constructor arguments, because `configured` reads all other sources."""
        return (init_settings,)

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The directory from which a model or tokenizer is loaded."""

    def prepare(self) -> None:
        """Apply the settings that affect the whole process, before it starts threads. May raise
        Unusable.
        """


class ExternalSettings(BaseSettings):
    """Each role's settings from environment variables, such as `TANDEM__VERIFIER__PORT`, and from
    the YAML file, such as `port` in the section `verifier`. The names and values of the settings
    are not checked yet.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_nested_max_split=1
    )

    verifier: Section = {}
    drafter: Section = {}
    orchestrator: Section = {}


ROLES = tuple(ExternalSettings.model_fields)
Config = TypeVar("Config", bound=ServiceConfig)
Settings = TypeVar("Settings", bound=BaseSettings)


class Help(HelpFormatter):
    """Formats help texts, and omits defaults that are None or come from a factory."""

    def _expand_help(self, action: Action) -> str:
        return re.sub(r" \(default(: None| factory: .*)\)$", "", super()._expand_help(action))


def external_settings(file: Path | str | None = None) -> ExternalSettings:
    """Read the settings of the environment and of a YAML file, by default the one that
    `TANDEM_CONFIG` names. Raises Unusable if the environment or the file is invalid, or names an
    unknown role.
    """
    for variable in map(str.upper, os.environ):
        role, _, name = variable.removeprefix(PREFIX).partition("__")
        if variable.startswith(PREFIX) and role.lower() not in ROLES:
            raise _unknown(variable, (f"{PREFIX}{role.upper()}__{name}" for role in ROLES))
    file = file or os.environ.get(FILE)
    if file and not Path(file).is_file():
        raise Unusable(f"{file} is not a file; it should be YAML")
    try:
        kind = ExternalSettings
        return _built(kind, EnvSettingsSource(kind), YamlConfigSettingsSource(kind, file))
    except ValidationError as error:
        for found in error.errors():
            if found["type"] == "extra_forbidden":
                raise _unknown(str(found["loc"][0]), ROLES, f"{file}: ") from None
        raise Unusable(f"{file}: {_problems(error)}") from None
    except Exception as error:  # a YAML error; its class is imported only if there is a file
        raise Unusable(f"{file or 'environment'}: {' '.join(str(error).split())}") from None


def configured(kind: type[Config], role: str, arguments: Sequence[str]) -> Config:
    """Read a role's settings from its command line, then environment and file, then defaults.

    Raises Unusable with the names of all bad fields. The flag `--help` raises SystemExit.
    """
    try:
        flags = CliSettingsSource[Any](
            kind,
            cli_prog_name=f"tandem {role}",
            cli_parse_args=list(arguments),
            formatter_class=Help,
        )
    except SettingsError as error:
        problem = str(error).removeprefix("error parsing CLI: ")
        wrong = re.search(r"unrecognized arguments: (--[\w-]+)", problem)
        known = (f"--{name.replace('_', '-')}" for name in kind.model_fields)
        hint = _nearest(wrong[1], known) if wrong else ""
        raise Unusable(f"{role}: {problem}{hint}") from None
    return _completed(kind, role, flags, flags().get("config"))


def completed(kind: type[Config], role: str, given: Mapping[str, Any]) -> Config:
    """Read a role's settings as `configured` does, but with the settings `given` instead of a
    command line; raises Unusable.
    """
    return _completed(kind, role, InitSettingsSource(kind, dict(given)), given.get("config"))


def _completed(
    kind: type[Config], role: str, first: PydanticBaseSettingsSource, file: Any
) -> Config:
    """Read a role's settings. `first` overrides environment and file, which override defaults."""
    more = getattr(external_settings(file), role)
    _refuse_unknown(role, more, file, kind.model_fields.keys() - {"config"})
    try:
        return _built(kind, first, InitSettingsSource(kind, more))
    except ValidationError as error:
        raise Unusable(f"{role}: {_problems(error)}") from None


def _built(kind: type[Settings], *sources: PydanticBaseSettingsSource) -> Settings:
    """Build settings from `sources` alone; earlier ones take precedence. Raises ValidationError."""
    arguments: dict[str, Any] = {"_build_sources": (sources, {})}
    return kind(**arguments)


def _refuse_unknown(
    role: str, given: Mapping[str, object], file: object, known: Iterable[str]
) -> None:
    variables = set(map(str.upper, os.environ))
    for name in given.keys() - known:
        prefix = f"{PREFIX}{role}__".upper()
        if prefix + name.upper() in variables:
            raise _unknown(prefix + name.upper(), (prefix + each.upper() for each in known))
        source = f"{file or os.environ.get(FILE)}: "
        raise _unknown(f"{role}.{name}", (f"{role}.{each}" for each in known), source)


def _unknown(name: str, known: Iterable[str], source: str = "") -> Unusable:
    return Unusable(f"{source}{name}: no such setting{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that suggests the known name most similar to a wrong `name`. If no known name
    is similar, the hint is empty.
    """
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _problems(error: ValidationError) -> str:
    found = (each for each in error.errors() if each["type"] != FOLLOWING_ERROR)
    return "; ".join(map(_problem, found))


def _problem(found: ErrorDetails) -> str:
    value = f", got {shortened(found['input'])}" if found["type"].startswith(SHOWABLE) else ""
    return ": ".join([*map(str, found["loc"]), message(found) + value])


def message(found: ErrorDetails) -> str:
    """Return the text of a validation error without the prefix that pydantic adds."""
    return found["msg"].removeprefix("Value error, ")
