"""What people see in a terminal: progress, coloured text, tables."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from orchestrator.frontend.text import TextStream, load_tokenizer
from protos.errors import Unusable
from protos.fingerprint import fingerprint
from protos.tandem.v1 import orchestrator_pb2 as api

ACCEPTED = "green"  # tokens that the drafter guessed
OWN = "default"  # tokens that the verifier added


class Progress:
    """What `tandem up` says while it starts and when it is ready."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def report(self, event: str, fact: dict[str, str]) -> None:
        """One announcement of a service."""
        role = f"{fact['role']:<12}"
        if event == "serving":
            self._console.print(
                f"[green]serving[/]     {role} {fact['address']}  metrics {fact['metrics']}/metrics"
            )
        elif event == "loading":
            self._console.print(f"[dim]loading     {role} {fact['model']}[/]", soft_wrap=True)
        else:
            self._console.print(f"[yellow]{event:<11}[/] {role}")

    def ready(self, address: str) -> None:
        """Everything serves, the client API at this address."""
        self._console.print(
            f"\nTandem is up: client API on [bold]{address}[/]. Ctrl-C stops everything."
        )
        self._console.print(
            f'Try: tandem generate --address {address} "Once upon a time"', soft_wrap=True
        )


def matching_tokenizer(folder: Path, wanted: str) -> Tokenizer | None:
    """The tokenizer of a model directory, if it is the served one; it tells which text belongs to
    which token.
    """
    try:
        return load_tokenizer(folder) if fingerprint(folder) == wanted else None
    except Unusable:
        return None


class Completion:
    """A completion as it grows. Without a tokenizer a chunk is coloured as a whole."""

    def __init__(self, console: Console, tokenizer: Tokenizer | None, prompt: str) -> None:
        self._console = console
        self._stream = TextStream(tokenizer, tokenizer.encode(prompt).ids) if tokenizer else None
        self._prompt = prompt

    def show(self, chunk: api.Chunk) -> None:
        """Print a chunk: all its tokens but the last were guessed."""
        self._print(self._prompt, "dim")
        self._prompt = ""
        drafted = chunk.token_ids[:-1]
        text = self._stream.push(drafted)[0] if self._stream else chunk.text * bool(drafted)
        if self._stream:
            self._stream.push(chunk.token_ids[-1:])
        if not chunk.text.startswith(text):  # a stop string was cut off, or held back
            text = ""
        self._print(text, ACCEPTED)
        self._print(chunk.text[len(text) :], OWN)

    def summarise(self, done: api.GenerateResponse) -> None:
        """One line: steps, acceptance and speed."""
        figures, tokens = done.speculation, done.usage.completion_tokens
        speed = tokens / done.timing.total_seconds if done.timing.total_seconds else 0.0
        self._console.print(
            f"\n[dim]{tokens} tokens in {figures.num_spec_steps} steps, "
            f"{figures.mean_acceptance_length:.2f} per step; "
            f"{figures.num_accepted_draft_tokens} of {figures.num_draft_tokens} "
            "guessed tokens accepted; "
            f"{speed:.0f} tokens/s; seed {done.seed}[/]",
            soft_wrap=True,
        )

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), end="", soft_wrap=True)


def show_status(console: Console, response: api.GetStatusResponse) -> None:
    """A table of replicas."""
    table = Table(
        "role",
        "address",
        "serving",
        "model",
        "device",
        "dtype",
        "sessions",
        "round trip",
        box=None,
    )
    for model in response.models:
        replicas = [("verifier", r) for r in model.verifiers] + [
            ("drafter", r) for r in model.drafters
        ]
        for role, replica in replicas:
            row = (
                role,
                replica.address,
                "yes" if replica.serving else "no",
                replica.model,
                replica.device,
            )
            trip = f"{replica.round_trip_seconds * 1000:.1f} ms" if replica.serving else ""
            table.add_row(*row, replica.dtype, str(replica.sessions), trip)
    console.print(table, soft_wrap=True)
    for model in response.models:
        for replica in model.verifiers:
            said = f"{replica.exactness}, {replica.kernels} kernels"
            console.print(f"verifier {replica.address}: {said}", soft_wrap=True)
        console.print(
            f"{model.name}: {model.requests_running} running, {model.requests_waiting} waiting"
        )
