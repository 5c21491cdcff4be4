"""Grafana panels, each with a title, a unit and queries, and the queries that many panels share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 2, 8  # panels per row, and a panel's height in rows of Grafana's grid
METRIC = re.compile(r"\b(tandem[_:][a-z0-9_:]+)(?:\{([^}]*)\})?")
CHOSEN = 'namespace=~"$namespace"'  # matches the deployments that are selected in a dashboard


@dataclass(frozen=True)
class Panel:
    """One graph of a dashboard. `queries` maps each query to the legend of its lines."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""

    def json(self, number: int) -> dict[str, Any]:
        """Return the panel in Grafana's JSON format. `number` is the panel's index."""
        width = 24 // COLUMNS
        x, y = number % COLUMNS * width, number // COLUMNS * HEIGHT
        return {
            "id": number + 1,
            "type": "timeseries",
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "gridPos": {"h": HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
            "targets": [
                {
                    "refId": chr(65 + n),
                    "expr": of_chosen(query),
                    "legendFormat": f"{{{{namespace}}}} {legend}",
                    "datasource": SOURCE,
                }
                for n, (query, legend) in enumerate(self.queries.items())
            ],
        }


def of_chosen(query: str) -> str:
    """Restrict a query to the deployments that are chosen in the dashboard's list."""
    return METRIC.sub(lambda it: f"{it[1]}{{{', '.join(filter(None, (it[2], CHOSEN)))}}}", query)


def rate(name: str, *by: str) -> str:
    """Return a query for a counter's increase per second, over all processes of a deployment."""
    return f"sum by ({', '.join(('namespace', *by))}) (rate(tandem_{name}[1m]))"


def quantile(name: str, part: float, *by: str) -> str:
    """Return a query for a quantile of a histogram, over all processes of a deployment."""
    return f"histogram_quantile({part}, {rate(f'{name}_bucket', 'le', *by)})"


def quantiles(title: str, name: str) -> Panel:
    """Create a panel that shows the median and the 95th percentile of a duration."""
    return Panel(title, "s", {quantile(name, 0.5): "median", quantile(name, 0.95): "95 %"})


def of_models(title: str, unit: str, name: str) -> Panel:
    """Create a panel that shows the 95th percentile of a metric, once for verifiers and once for
    drafters. The metrics are the histograms `verify_{name}` and `draft_{name}`.
    """
    owners = {"verify": "verifier", "draft": "drafter"}
    queries = {quantile(f"{each}_{name}", 0.95): owner for each, owner in owners.items()}
    return Panel(f"{title}, 95 %", unit, queries)
