"""Panels of Grafana: a title, a unit and queries; and the queries that many of them have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 2, 8  # of panels; Grafana's grid has 24 columns
METRIC = re.compile(r"\b(tandem[_:][a-z0-9_:]+)(?:\{([^}]*)\})?")
CHOSEN = 'namespace=~"$namespace"'  # of the deployments that a dashboard's list has


@dataclass(frozen=True)
class Panel:
    """One graph: queries, each with the legend of its lines."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""

    def json(self, number: int) -> dict[str, Any]:
        """As Grafana stores it."""
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
    """A query of the deployments that are chosen in the dashboard's list."""
    return METRIC.sub(lambda it: f"{it[1]}{{{', '.join(filter(None, (it[2], CHOSEN)))}}}", query)


def rate(name: str, *by: str) -> str:
    """Per second, over all processes of a deployment."""
    return f"sum by ({', '.join(('namespace', *by))}) (rate(tandem_{name}[1m]))"


def quantile(name: str, part: float, *by: str) -> str:
    """A quantile of a histogram, over all processes of a deployment."""
    return f"histogram_quantile({part}, {rate(f'{name}_bucket', 'le', *by)})"


def quantiles(title: str, name: str) -> Panel:
    """Median and 95th percentile of a duration."""
    return Panel(title, "s", {quantile(name, 0.5): "median", quantile(name, 0.95): "95 %"})


def of_models(title: str, unit: str, name: str) -> Panel:
    """The 95th percentile of the same at verifiers and at drafters."""
    owners = {"verify": "verifier", "draft": "drafter"}
    queries = {quantile(f"{each}_{name}", 0.95): owner for each, owner in owners.items()}
    return Panel(f"{title}, 95 %", unit, queries)
