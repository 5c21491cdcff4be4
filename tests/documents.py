"""The project's documents as the tests read them: pages, fenced blocks, inline code and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    *GUIDE,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")),
    *(ROOT / folder / "README.md" for folder in ("engine", "models", "examples", "examples/node")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTAINERS = "tests/system/test_containers.py::test"
FIRST_STEPS = "tests/system/test_first_steps.py::test_a_new_operator_sees_the_acceptance_rate"
ELSEWHERE = {  # the test, `file::name`, that runs a block, by the block's first command
    "ray start --head --node-ip-address=10.0.0.1 --port=6379": "tests/system/test_ray_nodes.py::"
    "test_streams_go_on_when_the_link_to_a_node_is_cut_and_when_the_node_is_lost",
    "docker compose -f deploy/compose.yaml up --build --detach --wait": f"{CONTAINERS}_containers"
    "_generate_and_come_back",
    "make setup demo": "tests/system/test_demo.py::"
    "test_the_demo_shows_green_drafts_and_both_speeds_and_leaves_nothing",
    "tandem distil --target path/to/target --out my-draft": "tests/system/test_distil.py::"
    "test_a_draft_model_is_made_in_two_goes_and_drafts",
    "tandem up --tls": "tests/system/test_locked.py::test_the_command_that_up_prints_works",
    "from pathlib import Path": "tests/system/test_locked.py::test_the_program_of_the_page_works",
    "export TANDEM__VERIFIER__METRICS_PORT=9001 TANDEM__DRAFTER__METRICS_PORT=9002 "
    "TANDEM__ORCHESTRATOR__METRICS_PORT=9003": FIRST_STEPS,
    "own=~/.local/share/tandem/certificates": FIRST_STEPS,
    "kubectl -n tandem create secret generic tandem-clients --from-file=clients.yaml": "tests/"
    "contracts/test_kustomize.py::test_clients_outside_of_the_cluster_reach_front_ends_that_know"
    "_them_by_a_secret",
    "mkdir -p compose-certs": f"{CONTAINERS}_a_program_on_the_host_gets_the_clients_certificate",
    "kubectl apply -k deploy/kustomize/base/shared": "tests/contracts/test_kustomize.py::test_the"
    "_commands_of_the_page_make_the_secrets_that_pods_mount",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `kind` is the word after its fence."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Return the block's commands as a shell sees them; in a console block, only lines after a
        prompt are commands.
        """
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.kind == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip()]

    @property
    def output(self) -> str:
        """Return what a console block shows below its last command."""
        return self.text.rpartition("$ ")[2].partition("\n")[2]


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, found[1], found[2])


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(text: str) -> list[str]:
    """Return the inline code of a text."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def code(page: Path) -> Iterator[str]:
    """Return all code of a page: the commands of its blocks, and inline code."""
    for block in blocks(page):
        yield from block.commands
    yield from spans(prose(page))


def section(page: Path, heading: str) -> str:
    """Return the text of a page below a heading of the second level, up to the next heading."""
    return prose(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows, including table heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
