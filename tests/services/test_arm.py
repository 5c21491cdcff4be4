"""The kernels for ARM on processors that QEMU emulates: their own tests pass, and a model is exact
with them.
"""

from __future__ import annotations

import pytest

from tests import arm

LAWS = ("linears", "norm", "gated", "panels", "products", "paths", "experts", "program")
SELF_TEST = """
from tandem import models
from tandem.engine.exact.exactness import self_test
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner

forward = HFRunner(load(models.DRAFT, "float32"), 2048)
print(forward.kernels, self_test(forward, "a model"), sep="; ")
"""

pytestmark = [
    pytest.mark.long("emulates another processor"),
    pytest.mark.skipif(not arm.READY.exists(), reason="make arm"),
]


@pytest.mark.parametrize("build", arm.PROCESSORS)
def test_the_kernels_for_arm_keep_their_laws(build: str) -> None:
    """One test in fourteen runs, because emulation is slow, and none of the other build."""
    files = [f"tests/laws/test_{name}.py" for name in LAWS]
    others = " or ".join(f"_{name}" for name in arm.PROCESSORS if name != build)
    apart = "--confcutdir=tests/laws", "-p", "no:cacheprovider", "-k", f"not ({others})"
    done = arm.run(build, "-m", "pytest", "-v", *apart, *files, EVERY="14")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[_{build}" in done.stdout


def test_a_model_is_exact_on_arm() -> None:
    """A model is exact with SVE too, but that test takes four minutes."""
    done = arm.run("neon", "-c", SELF_TEST)
    assert done.stdout.strip() == "neon, fused 37 of 40; exact", done.stdout + done.stderr
