"""The flags of commands that connect to a front end. Every such command has flags for the front
end's address and for the client's credentials. `tandem generate` and `tandem chat` also have one
flag for every option of a request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.descriptor import FieldDescriptor

from tandem.protos.errors import InvalidRequest, Unusable
from tandem.protos.wire.options import options, put
from tandem.v1 import orchestrator_pb2 as api

if TYPE_CHECKING:
    from tandem import AsyncClient, Client

ADDRESS = "127.0.0.1:50051"
MAX_NEW_TOKENS = 128  # maximum number of tokens of an answer, if a request sets no limit
CHAT_MAX_NEW_TOKENS = 512  # default limit of an answer's tokens in `tandem chat`
KINDS: dict[int, type[Any]] = {
    FieldDescriptor.TYPE_FLOAT: float,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_ENUM: str,
    FieldDescriptor.TYPE_MESSAGE: str,  # an entry of a map, such as TOKEN=BIAS
}
HELP = {
    "temperature": "sampling temperature; 0 decodes greedily; default: the model's own, or 1",
    "top_p": "probability mass of the nucleus; 1 turns nucleus sampling off",
    "top_k": "0 is off",
    "min_p": "0 is off",
    "repetition_penalty": "1 is off",
    "presence_penalty": "0 is off",
    "frequency_penalty": "0 is off",
    "logit_bias": "TOKEN=BIAS, may be repeated",
    "seed": "by default the server picks a seed and reports it",
    "json_schema": "the answer is JSON that fits this schema; @FILE reads the schema",
    "json_object": "the answer is a JSON object",
    "regex": "the answer matches this regular expression",
    "choice": "an allowed answer; repeat the flag to allow several",
    "lark": "the answer fits this Lark grammar; @FILE reads the grammar",
    "max_new_tokens": "maximum number of tokens of the answer",
    "min_new_tokens": "minimum number of tokens of the answer",
    "stop": "stop string, may be repeated",
    "stop_token_ids": "token that ends the answer; may be repeated",
    "ignore_eos": "continue after the model's own end tokens",
    "rule": "match, reject or top1",
    "num_speculative_tokens": "maximum draft depth beyond the committed text; 0 turns drafts off",
    "branches": "children per draft node (with medusa_lite, only of the root); 1 drafts a chain",
    "method": "tree, medusa_lite or suffix",
    "schedule": "goodput, constant or heuristic",
    "confidence_threshold": "end a draft after a token whose probability is below this value",
    "prediction": "text that much of the answer may repeat; drafts are looked up in it",
}


def _file(help: str, variable: str) -> Any:
    return Annotated[Path | None, typer.Option(help=help, envvar=variable)]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The address of a front end, and the credentials with which a client connects to it."""

    address: str = ADDRESS
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str | None = None

    def connect(self, retry_seconds: float = 60.0) -> AsyncClient:
        """Return an asyncio client of the front end. Raises Unusable."""
        from tandem import AsyncClient

        return AsyncClient(self.address, retry_seconds=retry_seconds, **self._security())

    def connect_sync(self) -> Client:
        """Return a synchronous client of the front end. Raises Unusable."""
        from tandem import Client

        return Client(self.address, **self._security())

    def _security(self) -> dict[str, Any]:
        return {
            "tls_ca": self.tls_ca,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "token": self.token,
        }


FLAGS = {
    "address": Annotated[
        str, typer.Option(help="address of the client API", envvar="TANDEM_ADDRESS")
    ],
    "tls_ca": _file("PEM file of the CA that signs certificates", "TANDEM_TLS_CA"),
    "tls_cert": _file("PEM file of your certificate", "TANDEM_TLS_CERT"),
    "tls_key": _file("PEM file of your certificate's key", "TANDEM_TLS_KEY"),
    "token": Annotated[
        str | None,
        typer.Option(
            help="your access token; safer to set in the environment", envvar="TANDEM_TOKEN"
        ),
    ],
}


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its argument `front_end` replaced by the flags in FLAGS."""
    known = signature(command, eval_str=True)
    own = [each for name, each in known.parameters.items() if name != "front_end"]
    more = own.pop() if own and own[-1].kind is Parameter.VAR_KEYWORD else None
    default = FrontEnd()
    flags = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(default, name), annotation=kind)
        for name, kind in FLAGS.items()
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        front_end = FrontEnd(**{name: given.pop(name) for name in FLAGS})
        command(front_end=front_end, **given)

    # Typer reads the flags from a function's signature and annotations, so both are replaced
    # here. `wraps` alone would copy the signature of `command`, which lacks the flags in FLAGS.
    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
    parameters = [*own, *flags, *([more] if more else [])]
    call.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def accepting(max_new_tokens: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's `**options` by one flag for every option of a
    request. A flag that is not given has the value None. `max_new_tokens` is the command's default
    token limit, and is shown in the help.
    """
    help = HELP | {"max_new_tokens": f"{HELP['max_new_tokens']}; default {max_new_tokens}"}

    def accept(command: Callable[..., None]) -> Callable[..., None]:
        known = signature(command, eval_str=True)
        own = [each for each in known.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        flags = [*own, *(_parameter(options()[name][1], text) for name, text in help.items())]
        # Typer reads the flags from the signature. The flags cannot be written as
        # parameters, because they are generated from the fields of the API.
        command.__signature__ = known.replace(parameters=flags)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in flags}
        return command

    return accept


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of the command line to keyword arguments of the Python client. Raises
    InvalidRequest for a value that does not fit its field.
    """
    found, trial = dict[str, Any](), api.GenerateRequest()
    for name in HELP:
        if (value := flags[name]) is not None:
            try:
                found[name] = READ.get(name, lambda value: value)(value)
                put(trial, name, found[name])
            except (InvalidRequest, ValueError):
                field = f"{options()[name][0]}.{name}"
                raise InvalidRequest.of(field, f"is {value}; {HELP[name]}") from None
    return found


def _parameter(field: FieldDescriptor, help: str) -> Parameter:
    kind: Any = KINDS.get(field.type, int)
    if field.is_repeated or field.type == FieldDescriptor.TYPE_MESSAGE:
        kind = list[kind]
    annotation = Annotated[kind | None, typer.Option(help=help)]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def prompt(given: str) -> str:
    """Return the prompt that an argument stands for. @FILE stands for the content of a file, a
    hyphen for all of standard input, and any other text for itself. Raises Unusable.
    """
    try:
        return sys.stdin.read() if given == "-" else _text(given)
    except ValueError as error:
        raise Unusable(f"the prompt cannot be read: {error}") from None


def _text(value: str) -> str:
    """Return `value` or, if it is @FILE, the content of the file. Raises ValueError if the file
    cannot be read.
    """
    try:
        return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value
    except OSError as error:
        raise ValueError(str(error)) from None


def _biases(entries: Iterable[str]) -> dict[int, float]:
    """Parse TOKEN=BIAS entries into a map from token ID to bias. Raises ValueError for a malformed
    entry.
    """
    pairs = (entry.partition("=") for entry in entries)
    return {int(token): float(bias) for token, _, bias in pairs}


READ: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": _biases,
    "json_schema": _text,
    "lark": _text,
}
