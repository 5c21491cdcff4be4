"""Start a verifier: `python -m verifier_service --model DIR`."""

from engine.config import ModelServiceConfig
from protos.service.command import command
from verifier_service.service import serving

if __name__ == "__main__":
    command("verifier", ModelServiceConfig, serving)
