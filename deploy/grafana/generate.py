"""Write the Grafana dashboards with `python deploy/grafana/generate.py`, or check that they are up
to date with `--check`. The panels are in `content.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from content import DASHBOARDS
from panels import SOURCE, Panel

FOLDER = Path(__file__).parent / "dashboards"


def dashboard(name: str, panels: tuple[Panel, ...]) -> str:
    """Return the content of a dashboard's JSON file."""
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    namespace = {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(tandem_build_info, namespace)",
        "refresh": 2,  # Grafana reloads the list of namespaces when the time range changes
        "includeAll": True,
        # the entry "All" of the list also matches metrics without a namespace label
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    made = {
        "uid": f"tandem-{name}",
        "title": f"Tandem: {name}",
        "tags": ["tandem"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [source | {"query": "prometheus"}, namespace]},
        "links": [
            {"type": "dashboards", "tags": ["tandem"], "title": "Tandem", "asDropdown": True}
        ],
        "panels": [panel.json(number) for number, panel in enumerate(panels)],
    }
    return json.dumps(made, indent=1) + "\n"


def main() -> int:
    """Write the dashboards that are outdated. With --check, write nothing, and fail if a dashboard
    is outdated.
    """
    outdated = []
    FOLDER.mkdir(exist_ok=True)
    for name, panels in DASHBOARDS.items():
        path, text = FOLDER / f"{name}.json", dashboard(name, panels)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and outdated:
        print(f"run deploy/grafana/generate.py: {', '.join(outdated)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
