"""The colours of all charts, in a light, a dark and a grey theme (`palette.json`), their contrast, and their HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, shown


@dataclass(frozen=True)
class Theme:
    """The colours (#rrggbb) of one theme.

    `on` has the colour of text and marks on each kind, and `on_lanes` on each lane. `paper` is the background, `idle`
    idle time, `not_idle` the rest of a bar of causes, `edge` thin lines, `longer` the bar
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
    """Return the ink, black or white, with the higher contrast on `colour` (WCAG 2 contrast ratio)."""
    return max("#ffffff", "#000000", key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1..21 (WCAG 2)."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the luminance of #rrggbb, 0..1."""
    red, green, blue = light_of(colour).tolist()
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(luminance: Any) -> Any:
    """Return the lightness L* (CIELAB), 0..100, of luminances."""
    return np.where(luminance > 216 / 24389, 116 * np.cbrt(luminance) - 16, 24389 / 27 * np.asarray(luminance))


def light_of(colour: str) -> np.ndarray:
    """Return #rrggbb in linear light."""
    return to_linear(np.array(channels(colour)) / 255)


def mixed(parts: Iterable[tuple[str, float]]) -> str:
    """Return the mean, #rrggbb, of colours in linear light; the parts of all add up to 1."""
    return f"#{from_linear(np.sum([light_of(colour) * part for colour, part in parts], axis=0)).tobytes().hex()}"


def from_linear(linear: np.ndarray) -> np.ndarray:
    """Return linear light as sRGB, uint8."""
    linear = np.clip(linear, 0, 1)
    srgb = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * srgb).astype(np.uint8)


def to_linear(srgb: Any) -> np.ndarray:
    """Return sRGB values (0..1) in linear light."""
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


# HTML in notebooks: the colours of a theme, or light and dark ones as the page around it

FONT = "'Liberation Sans',Arial,Helvetica,sans-serif"  # of static charts and of the viewer
_LIGHT_PAGES = "[data-jp-theme-light=true],.vscode-light,[data-theme=light]"  # JupyterLab, VS Code, furo
_DARK_PAGES = "[data-jp-theme-light=false],.vscode-dark,[data-theme=dark],[theme=dark]"  # and Colab
ON_LIGHT, ON_DARK = "display:var(--pp-day,block)", "display:var(--pp-night,none)"  # of what is for one of them


def notebook_theme(name: str | None) -> Theme:
    """Return the theme of this name; for None the light one, with variables that `reader_style` sets."""
    return _variables() if name is None else theme_of(name)


def reader_style(text: str) -> str:
    """Return the style that gives the variables in some HTML their dark values where the page around it is dark."""
    used = sorted(set(re.findall(r"var\(--pp-(\w{6})-(\w{6}),", text)))
    light, dark = "--pp-dark:0;--pp-day:block;--pp-night:none", "--pp-dark:1;--pp-day:none;--pp-night:block"
    for one, other in used:
        light, dark = f"{light};--pp-{one}-{other}:#{one}", f"{dark};--pp-{one}-{other}:#{other}"
    on_dark = f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_DARK_PAGES}{{{dark}}}"
    return f"<style>{on_dark}{_LIGHT_PAGES}{{{light}}}</style>" if used or ON_DARK in text else ""


def _variable(light: str, dark: str) -> str:
    """Return a variable of CSS for two colours, the light one without `reader_style`."""
    return light if light == dark else f"var(--pp-{light[1:]}-{dark[1:]},{light})"


@cache
def _variables() -> Theme:
    """Return the light theme with a variable in place of each colour."""
    found: dict[str, Any] = {"name": LIGHT.name}
    for role, value in list(vars(LIGHT).items())[1:]:
        dark = getattr(DARK, role)
        if isinstance(value, Mapping):
            found[role] = {key: _variable(colour, dark[key]) for key, colour in value.items()}
        else:
            found[role] = _variable(value, dark)
    return Theme(**found)
