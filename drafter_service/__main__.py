"""Start a drafter: `python -m tandem.drafter_service --model DIR`."""

from tandem.engine.config import ModelServiceConfig
from tandem.protos.service.command import command

if __name__ == "__main__":
    command("drafter", ModelServiceConfig, "tandem.drafter_service.service")
