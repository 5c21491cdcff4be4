"""Generate the committed gRPC stubs from the schemas, or check that they are up to date.

python -m tandem.protos.generate [--check]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).parent
STUBS = Path("tandem/v1")


def generate(out: Path) -> None:
    """Write the stubs of all schemas into the folder `out`, to be imported as `tandem.v1`."""
    schemas = sorted(str(path.relative_to(ROOT)) for path in (ROOT / STUBS).glob("*.proto"))
    kinds = ("python", "grpc_python", "mypy", "mypy_grpc")
    beside = Path(sys.executable).parent  # pip installs the plugins here; it may not be on PATH
    plugins = [f"--plugin=protoc-gen-{kind}={beside}/protoc-gen-{kind}" for kind in kinds[2:]]
    outputs = [f"--{kind}_out={out}" for kind in kinds]
    known = Path(grpc_tools.__file__).parent / "_proto"  # contains google/protobuf/*.proto
    arguments = ["protoc", f"-I{ROOT}", f"-I{known}", *plugins, *outputs, *schemas]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


def stale(fresh: Path) -> list[str]:
    """Return the names of the stubs that differ between the checkout and `fresh`, or that exist in
    only one of them.
    """
    names = {path.name for side in (ROOT, fresh) for path in (side / STUBS).glob("*_pb2*")}

    def content(side: Path, name: str) -> bytes:
        path = side / STUBS / name
        return path.read_bytes() if path.exists() else b""

    return sorted(name for name in names if content(ROOT, name) != content(fresh, name))


def main() -> None:
    """Parse the command line, then generate or check the stubs."""
    parser = argparse.ArgumentParser(description="make the gRPC stubs")
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail if a stub is stale"
    )
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        if names := stale(Path(folder)):
            sys.exit(f"stale stubs: {', '.join(names)}; run `make stubs`")


if __name__ == "__main__":
    main()
