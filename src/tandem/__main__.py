"""`python -m tandem` is the `tandem` command."""

from tandem.orchestrator.cli.app import app

app()
