"""Write the rules and alerts as an object for Prometheus' operator with `python
deploy/prometheus/generate.py`, or check that the object is up to date with `--check`. With
`--runbook URL`, the alerts link to that page from then on.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from pathlib import Path

HERE = Path(__file__).parent
RULES = ("rules.yml", "alerts.yml", "kubernetes.yml")
MADE = HERE.parent / "kustomize" / "base" / "monitoring" / "rules.yaml"
HEAD = f"""\
# Made by deploy/prometheus/generate.py of {", ".join(RULES)}.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {{name: tandem}}
spec:
  groups:
"""


def prometheus_rule() -> str:
    """Return one PrometheusRule object with the groups of all rule files."""
    lines = []
    for name in RULES:
        groups = (HERE / name).read_text(encoding="utf-8").partition("\ngroups:\n")[2]
        lines += [f"  {line}" if line else "" for line in groups.strip("\n").split("\n")]
    return HEAD + "\n".join(lines) + "\n"


def set_runbook(url: str) -> None:
    """Make the alerts, and the tests of the alerts, link to another runbook page."""
    for name in (*RULES, "tests.yml"):
        text = (HERE / name).read_text(encoding="utf-8")
        text = re.sub(r"runbook_url: [^#\s]*#", lambda _: f"runbook_url: {url}#", text)
        (HERE / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Write the object if it is not up to date; with --check, fail if it is not."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--runbook", metavar="URL", help="URL at which people read docs/runbook.md")
    given = parser.parse_args()
    if given.runbook:
        set_runbook(given.runbook)
    text = prometheus_rule()
    if MADE.is_file() and MADE.read_text(encoding="utf-8") == text:
        return 0
    if given.check:
        print("run deploy/prometheus/generate.py", file=sys.stderr)
        return 1
    MADE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
