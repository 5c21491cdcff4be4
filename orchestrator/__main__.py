"""Start an orchestrator: `python -m tandem.orchestrator --verifier HOST:PORT --drafter HOST:PORT
--tokenizer DIR`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service import process
from tandem.protos.service.command import command

ROLE = "orchestrator"


@contextmanager
def _ending_in_order(config: OrchestratorConfig) -> Iterator[None]:
    """Signals unwind the scopes, which end Ray, if it is wanted; raises ModuleNotFoundError."""
    if config.ray and find_spec("ray") is None:
        raise ModuleNotFoundError("No module named 'ray'", name="ray")
    process.raise_on_signals()
    yield


if __name__ == "__main__":
    command(
        ROLE,
        OrchestratorConfig,
        "tandem.orchestrator.server",
        around=_ending_in_order,
        more=lambda pages: {"pages": pages},
    )
