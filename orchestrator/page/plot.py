"""Draw small plots of the last minutes, as SVG that is part of a page. The module is pure.

The SVG contains no text, because it is stretched to the width of the page. The scales are HTML
beside the SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 300.0, 72.0
SCALE_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
MIN_SHOWN = 1e-6  # if all values are smaller, the scale ends at 1

# age in seconds, and the value at that time, or None if nothing was measured
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot, the oldest point first; `style` is its class in the style sheet."""

    name: str
    style: str
    points: Sequence[Point]

    @property
    def last(self) -> float | None:
        """The value of the newest point, or None if there is no point."""
        return self.points[-1][1] if self.points else None


def top_of_scale(lines: Sequence[Line]) -> float:
    """Return the upper end of the scale, a round number that no value exceeds."""
    most = max((v for line in lines for _, v in line.points if v is not None), default=0.0)
    if most < MIN_SHOWN:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(step * power for step in SCALE_STEPS if most <= step * power * (1 + 1e-9))


def plot(label: str, lines: Sequence[Line], seconds: float, top: float) -> str:
    """Return an SVG of the last `seconds` seconds, with values from 0 to `top`."""
    grid = "".join(
        f'<path class="grid" d="M0 {HEIGHT * part:g}H{WIDTH:g}"/>' for part in (0.0, 0.5, 1.0)
    )
    drawn = "".join(_drawn(line, seconds, top) for line in reversed(lines))
    return (
        f'<svg viewBox="0 -2 {WIDTH:g} {HEIGHT + 4:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{grid}{drawn}</svg>'
    )


def _drawn(line: Line, seconds: float, top: float) -> str:
    paths = []
    for run in _runs(line.points):
        coordinates = [
            (WIDTH * (1 - min(ago, seconds) / seconds), HEIGHT * (1 - min(value, top) / top))
            for ago, value in run
        ]
        if len(coordinates) == 1:  # a single point would be invisible
            (x, y) = coordinates[0]
            coordinates = [(max(0.0, x - 2), y), (min(WIDTH, x + 2), y)]
        paths.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in coordinates))
    return f'<path class="line {line.style}" d="{"".join(paths)}"/>' if paths else ""


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Split points at the gaps, which are points with the value None."""
    runs: list[list[tuple[float, float]]] = [[]]
    for ago, value in points:
        if value is not None:
            runs[-1].append((ago, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def minutes(seconds: float) -> str:
    """Return how many minutes ago a plot begins, as text."""
    return f"{ceil(seconds / 60)} min ago"
