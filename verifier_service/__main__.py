"""Start a verifier: `python -m tandem.verifier_service --model DIR`."""

from tandem.engine.config import ModelServiceConfig
from tandem.protos.service.command import command

if __name__ == "__main__":
    command("verifier", ModelServiceConfig, "tandem.verifier_service.service")
