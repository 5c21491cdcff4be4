"""Downloads models by name from the Hugging Face hub into the local cache of the hub's library.

Only files that Tandem loads are downloaded: configuration, tokenizer, safetensors.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from tandem.protos.errors import Unusable
from tandem.protos.gguf import is_gguf

NAME = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("*.json", "*.jinja")
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors")
OTHER_FORMATS = "*/*"  # subfolders of a model, with the same weights in other formats
CACHED = "snapshots"


def local(model: Path, files: tuple[str, ...]) -> Path:
    """Return the local path of a model. If the path does not exist and looks like a name on the
    hub, `huggingface_hub` downloads the files that are missing in its cache. Raises Unusable.
    """
    if model.exists() or not NAME.fullmatch(str(model)) or model.parent.exists():
        return model
    advice = f"hf download {model} --local-dir {model.name}"
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            str(model), allow_patterns=list(files), ignore_patterns=[OTHER_FORMATS]
        )
    except ModuleNotFoundError as error:
        problem = (
            f"{model} is not on this machine; to download it: pip install huggingface_hub; {advice}"
        )
        raise Unusable(problem) from error
    except Exception as error:  # errors of the library, the network or the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = (
            f"{model} is not on this machine and could not be downloaded ({reason});"
            f" to download it by hand: {advice}"
        )
        raise Unusable(problem) from error
    return Path(folder)


def served(model: Path) -> Path:
    """Return the local path of a model to load; raises Unusable if the path has no model."""
    found = local(model, MODEL_FILES)
    if is_gguf(found) and not found.is_file():
        raise Unusable(f"{found} is not there")
    if not is_gguf(found) and not (found / "config.json").is_file():
        raise Unusable(f"{found} is not a model directory: it has no config.json")
    return found


ModelPath: TypeAlias = Annotated[Path, AfterValidator(served)]
TokenizerPath: TypeAlias = Annotated[Path, AfterValidator(partial(local, files=TOKENIZER_FILES))]


def name_of(model: Path) -> str:
    """Return the usual name of a model: the last part of its path, or its name on the hub."""
    path = model.resolve()
    if path.parent.name == CACHED:
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name
