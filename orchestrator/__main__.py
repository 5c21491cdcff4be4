"""Start an orchestrator: `python -m orchestrator --verifier HOST:PORT --drafter HOST:PORT
--tokenizer DIR`.
"""

from contextlib import AbstractContextManager, nullcontext

from orchestrator.config import OrchestratorConfig
from orchestrator.server import serving
from orchestrator.workers import cluster
from protos.service.command import command


def _ray(config: OrchestratorConfig) -> AbstractContextManager[None]:
    return cluster.running(config.ray_address, config.workers) if config.ray else nullcontext()


if __name__ == "__main__":
    command("orchestrator", OrchestratorConfig, serving, around=_ray)
