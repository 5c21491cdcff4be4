"""Print what people see in a terminal: progress, coloured text, tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.json_format import ParseDict
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from tokenizers import Tokenizer

from tandem.orchestrator.cli import status_view
from tandem.orchestrator.requests.text import TextStream, load_tokenizer
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import fingerprint
from tandem.v1 import orchestrator_pb2 as api

ACCEPTED = "green"  # colour of tokens that the drafter proposed
OWN = "default"  # colour of tokens that the verifier added


def console() -> Console:
    """Return the console to which all output is printed."""
    return Console(highlight=False)


class StartProgress:
    """Prints the progress of `tandem up`, and how to use the system once it is ready."""

    def __init__(self, console: Console, asking: Sequence[str] = ()) -> None:
        """`asking` lists the flags that a client command needs to connect to this system."""
        self._console = console
        self._asking = asking
        self._page = ""  # URL of the status page
        self._loaded: dict[str, api.ReplicaStatus] = {}  # what each service has loaded

    def report(self, event: str, fields: dict[str, str]) -> None:
        """Print one event that a service announced."""
        role, of = f"{fields['role']:<12}", escape(fields.get("model", ""))
        if "seconds" in fields:
            of = f"for {fields['seconds']} s"
        if event == "serving":
            self._page = fields["metrics"] if fields["role"] == "orchestrator" else self._page
            where = f"{escape(fields['address'])}  metrics {escape(fields['metrics'])}/metrics"
            self._print(f"[green]serving[/]     {role} {where}")
        elif event == "cell":
            pages = f"metrics {fields['metrics']}/metrics  {fields.get('http', '')}"
            where = f"{fields['address']}  {pages}"
            self._print(f"[green]serving[/]     {event:<12} {escape(where)}")
        elif event == "http":
            self._print(f"[green]serving[/]     {event:<12} {escape(fields['address'])}")
        elif event == "loaded" and "seconds" not in fields:
            self._loaded[fields["role"]] = ParseDict(
                fields, api.ReplicaStatus(), ignore_unknown_fields=True
            )
        elif event in ("starting", "loading", "testing", "loaded"):
            self._print(f"[dim]{event:<11} {role} {of}[/]")
        else:
            self._print(f"[yellow]{event:<11}[/] {role}")

    def ready(self, address: str) -> None:
        """Print that all services are ready, the client API's `address`, and commands to try."""
        where = escape(address)
        for line in status_view.held_lines(sorted(self._loaded.items(), reverse=True)):
            self._print(escape(line))
        self._print(f"Tandem is up: client API on [bold]{where}[/]. Ctrl-C stops everything.")
        if self._page:
            self._print(f"Status page: [bold]{escape(self._page)}/[/]")
        asking = escape(" ".join(("--address", address, *self._asking)))
        self._print(f'Generate: tandem generate {asking} "Once upon a time"')
        self._print(f"Watch:    tandem top {asking}")
        self._print(f"Measure:  tandem bench serve {asking}")

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


def matching_tokenizer(folder: Path, wanted: str) -> Tokenizer | None:
    """Return the tokenizer of a model directory if its fingerprint is `wanted`, else None. With the
    tokenizer, the command can tell which text belongs to which token.
    """
    try:
        return load_tokenizer(folder) if fingerprint(folder) == wanted else None
    except Unusable:
        return None


def ended(done: api.GenerateResponse) -> str:
    """Return why an answer has ended, and the stop string or token that ended it."""
    why = api.FinishReason.Name(done.finish_reason).removeprefix("FINISH_REASON_").lower()
    match done.WhichOneof("matched_stop"):
        case "matched_text":
            return f"{why}, {done.matched_text!r}"
        case "matched_token_id":
            return f"{why}, token {done.matched_token_id}"
    return why


class Completion:
    """Prints a completion while it is generated. Without a tokenizer, each chunk has one colour."""

    def __init__(self, console: Console, tokenizer: Tokenizer | None, prompt: str) -> None:
        self._console = console
        self._stream = TextStream(tokenizer, tokenizer.encode(prompt).ids) if tokenizer else None
        self._prompt = prompt

    def show(self, chunk: api.Chunk) -> None:
        """Print a chunk. All tokens of a chunk except the last were proposed by the drafter."""
        self._print(self._prompt, "dim")
        self._prompt = ""
        drafted = chunk.token_ids[:-1]
        text = self._stream.push(drafted)[0] if self._stream else chunk.text * bool(drafted)
        if self._stream:
            self._stream.push(chunk.token_ids[-1:])
        # a chunk's text is shorter than its tokens if a stop string was cut off or is held back
        if not chunk.text.startswith(text):
            text = ""
        self._print(text, ACCEPTED)
        self._print(chunk.text[len(text) :], OWN)

    def summarise(self, done: api.GenerateResponse) -> None:
        """Print one line with steps, acceptance and speed."""
        figures, tokens = done.speculation, done.usage.completion_tokens
        speed = tokens / done.timing.total_seconds if done.timing.total_seconds else 0.0
        self._console.print(
            f"\n[dim]{tokens} tokens in {figures.num_spec_steps} steps, "
            f"{figures.mean_acceptance_length:.2f} per step; "
            f"{figures.num_accepted_draft_tokens} of {figures.num_draft_tokens} "
            "draft tokens accepted; "
            f"{speed:.0f} tokens/s; seed {done.seed}[/]",
            soft_wrap=True,
        )

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), end="", soft_wrap=True)
