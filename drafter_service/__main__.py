"""Start a drafter: `python -m drafter_service --model DIR`."""

from drafter_service.service import serving
from engine.config import ModelServiceConfig
from protos.service.command import command

if __name__ == "__main__":
    command("drafter", ModelServiceConfig, serving)
