"""The colours of all charts, in a light, a dark and a grey theme, and their contrast (`palette.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, shown


@dataclass(frozen=True)
class Theme:
    """The colours (#rrggbb) of one theme.

    `on` has the colour of text and marks on each kind, and `on_lanes` on each lane. `paper` is the background, `idle`
    idle time, `not_idle` the rest of a bar of causes and the ground of a lane, `edge` thin lines, `longer` the bar
    above what takes longer than in another chart, `halo` the casing of the critical path. An OVERLAP_F_B slot shows
    its two parts; its own colour is for tables and text.
    """

    name: str
    paper: str
    idle: str
    text: str
    quiet: str
    grid: str
    edge: str
    not_idle: str
    panel: str
    limit: str
    longer: str
    memory: str
    critical: str
    halo: str
    kinds: Mapping[Kind, str]
    on: Mapping[Kind, str]
    causes: Mapping[str, str]
    lanes: Mapping[str, str]

    @property
    def on_lanes(self) -> dict[str, str]:
        """Colour of text on each lane."""
        return {sort: label_colour(colour) for sort, colour in self.lanes.items()}


def _read() -> dict[str, Theme]:
    found: dict[str, Any] = json.loads(files("ppsim.plots").joinpath("palette.json").read_text(encoding="utf-8"))
    themes = {}
    for name, colours in found.items():
        by_kind = {key: {Kind[kind]: colour for kind, colour in colours[key].items()} for key in ("kinds", "on")}
        themes[name] = Theme(name, **{**colours, **by_kind})
    return themes


THEMES = _read()
LIGHT, DARK, GREY = (THEMES[name] for name in ("light", "dark", "grey"))
IDLE_TITLE = "idle"
TITLES = {
    Kind.F: "F forward",
    Kind.B: "B backward",
    Kind.I: "I input gradient",
    Kind.W: "W weight gradient",
    Kind.R: "R recompute",
    Kind.S: "S output layer forward",
    Kind.T: "T output layer backward",
    Kind.OVERLAP_F_B: "F and B in one slot",
}


def theme_of(name: Any) -> Theme:
    """Return the theme of this name; raise ConfigError for another name."""
    if not isinstance(name, str) or name not in THEMES:
        raise ConfigError(f"theme={shown(name)} is not known; use one of: {', '.join(THEMES)}")
    return THEMES[name]


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue (0..255) of #rrggbb."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def label_colour(colour: str) -> str:
    """Return the ink, near black or white, with the higher contrast on `colour` (WCAG 2 contrast ratio)."""
    return "#ffffff" if contrast("#ffffff", colour) >= contrast("#0b0d10", colour) else "#0b0d10"


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1..21 (WCAG 2)."""
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
