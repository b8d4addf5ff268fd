"""Draws the plots of docs/accuracy.md as SVG: predicted against measured by class, and how reliable intervals are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

# Okabe and Ito 2008: colours that readers with any colour vision tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#332288", "#000000", "#F0E442")
WIDTH, HEIGHT, LEFT, TOP, SIDE = 760, 420, 60, 30, 340
Point = tuple[float, float]


def scatter(classes: Mapping[str, Mapping[bool, Sequence[Point]]]) -> str:
    """Return a plot of (measured, predicted) seconds on logarithmic axes; filled points are out of view."""
    every = [value for kinds in classes.values() for points in kinds.values() for point in points for value in point]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def at(value: float) -> float:
        return SIDE * (math.log10(value) - low) / (high - low)

    parts = _frame("Predicted against measured seconds of a step", "measured (s)", "predicted (s)")
    for power in range(low, high + 1):
        parts += _ticks(SIDE * (power - low) / (high - low), f"{10.0**power:g}")
    for factor in (1 / 1.25, 1.0, 1.25):
        dashes = "" if factor == 1 else ' stroke-dasharray="4 4"'
        shift = SIDE * math.log10(factor) / (high - low)
        start, end = max(0.0, -shift), min(SIDE, SIDE - shift)
        line = f'<line x1="{start:.1f}" y1="{-(start + shift):.1f}" x2="{end:.1f}" y2="{-(end + shift):.1f}"'
        parts.append(f'{line} stroke="#777"{dashes}/>')
    for number, (name, kinds) in enumerate(classes.items()):
        colour = COLOURS[number % len(COLOURS)]
        for out_of_view, points in kinds.items():
            fill = f'fill="{colour}" fill-opacity="0.5"' if out_of_view else f'fill="none" stroke="{colour}"'
            parts += [f'<circle cx="{at(x):.1f}" cy="{-at(y):.1f}" r="2.5" {fill}/>' for x, y in points]
        parts += _legend(number, name, colour)
    parts += _legend(len(classes) + 1, "filled: out of view", "#555")
    parts += _legend(len(classes) + 2, "open: in view; dashes: 25 %", "none")
    return _whole(parts)


def reliability(lines: Mapping[str, Sequence[Point]]) -> str:
    """Return a plot of the part of runs inside an interval by the part that the interval claims to hold."""
    parts = _frame("Part of the runs out of view inside", "claimed", "inside")
    for tenth in range(0, 11, 2):
        parts += _ticks(SIDE * tenth / 10, f"{tenth * 10} %")
    parts.append(f'<line x1="0" y1="0" x2="{SIDE}" y2="{-SIDE}" stroke="#777" stroke-dasharray="4 4"/>')
    for number, (name, points) in enumerate(lines.items()):
        colour, places = COLOURS[number], " ".join(f"{SIDE * x:.1f},{-SIDE * y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += _legend(number, name, colour)
    return _whole(parts)


def _frame(title: str, across: str, up: str) -> list[str]:
    return [
        f'<rect x="0" y="{-SIDE}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#777"/>',
        f'<text x="0" y="{-SIDE - 12}" font-weight="bold">{escape(title)}</text>',
        f'<text x="{SIDE / 2}" y="36" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="rotate(-90)" x="{SIDE / 2}" y="-42" text-anchor="middle">{escape(up)}</text>',
    ]


def _ticks(place: float, label: str) -> list[str]:
    return [
        f'<text x="{place:.1f}" y="16" text-anchor="middle">{label}</text>',
        f'<text x="-6" y="{-place + 4:.1f}" text-anchor="end">{label}</text>',
    ]


def _legend(number: int, name: str, colour: str) -> list[str]:
    x, y = SIDE + 20, -SIDE + 12 + 20 * number
    return [
        f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>',
        f'<text x="{x + 12}" y="{y}">{escape(name)}</text>',
    ]


def _whole(parts: Iterable[str]) -> str:
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
        f'<g transform="translate({LEFT} {TOP + SIDE})">\n{inner}\n</g></svg>\n'
    )
