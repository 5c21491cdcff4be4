"""The installed package, used from a folder with modules that have the same names as Tandem's: only
`tandem` is importable, `tandem up` serves, and the client of docs/api.md runs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks
from tests.running_up import serving
from tests.system.test_documents import CLIENT_API

pytestmark = pytest.mark.long("builds a wheel and installs it")

FOLDERS = ("protos", "engine", "drafter_service", "orchestrator", "models", "benchmarks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the wheel and this environment's other packages,
    but without this environment's own `tandem`.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)
    purelib = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(purelib, check=True, capture_output=True, text=True).stdout.strip()
    Path(site, "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder with modules of its own."""
    for name in (*FOLDERS, "tests"):
        (tmp_path / f"{name}.py").write_text('raise SystemExit("the wrong module")\n')
    return tmp_path


def test_a_wheel_installs_one_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"tandem", "tandem_serving"}
    assert len(names) == len(set(names))
    shipped = {"tandem/v1/orchestrator.proto", "tandem/py.typed", "tandem/models/README.md"}
    assert shipped <= set(names)
    assert not [name for name in names if name.startswith("tandem/protos/tandem")]


def test_an_installed_tandem_serves_from_any_folder(programs: Path, elsewhere: Path) -> None:
    page = ROOT / "docs" / "api.md"
    client = next(block.text for block in blocks(page) if block.kind == "python")
    up = [str(programs / "tandem"), "up", "--port", "0", "--no-ray"]
    with serving(up, elsewhere) as served:
        program = client.replace(CLIENT_API, served.address)
        command = [str(programs / "python"), "-P", "-c", program]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens per step" in done.stdout
