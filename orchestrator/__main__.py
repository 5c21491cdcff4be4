"""Start an orchestrator: `python -m tandem.orchestrator --verifier HOST:PORT --drafter HOST:PORT
--tokenizer DIR`.
"""

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.address import unbracketed
from tandem.protos.errors import Unusable
from tandem.protos.service import process
from tandem.protos.service.command import command

ROLE = "orchestrator"
LOCAL = OrchestratorConfig.model_fields["ray_address"].default
CONNECT_SECONDS = 5.0
JOIN_SECONDS = 30.0  # Ray itself goes on for minutes


@contextmanager
def _ray(config: OrchestratorConfig) -> Iterator[None]:
    """Ray while the scope lasts, if it is wanted; raises Unusable."""
    process.raise_on_signals()
    with ExitStack() as scope:
        if config.ray:
            from tandem.orchestrator.workers import cluster

            with _joining(config.ray_address):
                scope.enter_context(cluster.running(config.ray_address, config.workers))
            process.raise_on_signals()  # Ray has set its own
        yield


@contextmanager
def _joining(address: str) -> Iterator[None]:
    """The start of Ray, which fails with one line; to join a cluster takes a bounded time."""
    joins = address != LOCAL
    problem = f"cannot join the Ray cluster at {address}" if joins else "Ray did not start"
    late = Unusable(f"{problem}: no answer in {JOIN_SECONDS:.0f} s")
    clock = threading.Timer(JOIN_SECONDS, process.refuse, (ROLE, late, os._exit))
    clock.daemon = True
    if joins:
        clock.start()
    try:
        if joins and (found := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)):
            peer = unbracketed(found[1]), int(found[2])
            socket.create_connection(peer, CONNECT_SECONDS).close()
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:  # Ray raises that itself when the machine is too busy
        raise Unusable(f"{problem}: {' '.join(str(error).split())}") from error
    finally:
        clock.cancel()


if __name__ == "__main__":
    command(
        ROLE,
        OrchestratorConfig,
        "tandem.orchestrator.server",
        around=_ray,
        more=lambda pages: {"pages": pages},
    )
