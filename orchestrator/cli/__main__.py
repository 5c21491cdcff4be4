"""`python -m orchestrator.cli`."""

from orchestrator.cli.app import app

if __name__ == "__main__":
    app()
