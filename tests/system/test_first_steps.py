"""The steps of docs/metrics.md for a new operator, run in a shell: a Tandem with TLS, a Prometheus,
some requests, and a query that shows what drafts are worth.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.orchestrator.cli import status_view
from tandem.protos.transport import rpc
from tests.documents import ROOT, blocks
from tests.system.test_documents import checkout

pytestmark = pytest.mark.long("a real Prometheus watches a whole system")

PORTS = ("9001", "9002", "9003", "9095")
STOP = "trap 'kill $(jobs -p); wait' EXIT"


def test_a_new_operator_sees_the_acceptance_rate(tmp_path: Path) -> None:
    """All commands are those of docs/metrics.md, except for ports that may be taken."""
    if not shutil.which("prometheus"):
        pytest.skip("no prometheus here; `make tools` installs it")
    free = {port: str(rpc.free_port("127.0.0.1")) for port in PORTS}

    def on_free_ports(text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: free[found[0]], text)

    (folder := tmp_path / "checkout").mkdir()
    (checkout(folder) / "deploy").unlink()
    shutil.copytree(ROOT / "deploy" / "prometheus", rules := folder / "deploy" / "prometheus")
    config = rules / "prometheus.yml"
    config.write_text(on_free_ports(config.read_text("utf-8")), "utf-8")
    page = [each for each in blocks(ROOT / "docs" / "metrics.md") if each.kind == "sh"]
    script = on_free_ports("\n".join([". .venv/bin/activate", STOP, *(b.text for b in page)]))
    port, http = rpc.free_port("127.0.0.1"), rpc.free_port("127.0.0.1")
    environment = os.environ | {
        "HOME": str(tmp_path),
        "TANDEM_ADDRESS": f"127.0.0.1:{port}",
        "TANDEM__ORCHESTRATOR__PORT": str(port),
        "TANDEM__ORCHESTRATOR__HTTP_PORT": str(http),
    }
    environment.pop("XDG_DATA_HOME", None)
    done = subprocess.run(
        ["bash", "-uc", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    held = "\n" + " +".join(status_view.HELD) + "\nverifier +target "
    assert len(re.findall(held, done.stdout)) >= 2, "of `tandem up`, and of `tandem status`"
    (found,) = json.loads(done.stdout.splitlines()[-1])["data"]["result"]
    rate = float(found["value"][1])
    assert math.isnan(rate) or 0 <= rate <= 1, "NaN where no draft came in time"
