"""Start an orchestrator: `python -m tandem.orchestrator --verifier HOST:PORT --drafter HOST:PORT
--tokenizer DIR`.
"""

from importlib.util import find_spec

from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service import command

ROLE = "orchestrator"


def serve(config: OrchestratorConfig) -> None:
    """Run cells on Ray Serve or, if the setting `ray` is off, one cell in this process. Raises
    ModuleNotFoundError if Ray is needed but not installed.
    """
    if not config.ray:
        command.serve(ROLE, config, "tandem.orchestrator.server")
        return
    if find_spec("ray") is None:
        raise ModuleNotFoundError("No module named 'ray'", name="ray")
    from tandem.orchestrator import launcher

    launcher.serve(config)


if __name__ == "__main__":
    command.start(ROLE, OrchestratorConfig, serve)
