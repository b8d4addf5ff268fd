"""Colours of HTML in notebooks: those of a theme, or light and dark ones as the page around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from ppsim.plots.palette import DARK, LIGHT, Theme, theme_of

_LIGHT_PAGES = "[data-jp-theme-light=true],.vscode-light,[data-theme=light]"  # JupyterLab, VS Code, furo
_DARK_PAGES = "[data-jp-theme-light=false],.vscode-dark,[data-theme=dark],[theme=dark]"  # and Colab
_IS_LIGHT, _IS_DARK = "--pp-light", "--pp-dark"
ONLY_LIGHT, ONLY_DARK = f"opacity:var({_IS_LIGHT},1)", f"opacity:var({_IS_DARK},0)"  # of a picture for one of them


class Html(str):
    """HTML that a notebook shows as such."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self


def notebook_theme(name: str | None) -> Theme:
    """Return the theme of this name; for None the light one, with variables that `reader_style` sets."""
    return _variables() if name is None else theme_of(name)


def reader_style(text: str) -> str:
    """Return the style that gives the variables in some HTML their dark values where the page around it is dark."""
    used = sorted(set(re.findall(r"var\((--pp-[\w-]+),", text)))
    light, dark = (";".join(f"{name}:{_colours(theme)[name]}" for name in used) for theme in (LIGHT, DARK))
    dark_system = f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"<style>{dark_system}{_LIGHT_PAGES}{{{light}}}{_DARK_PAGES}{{{dark}}}</style>" if used else ""


def _colours(theme: Theme) -> dict[str, str]:
    """Return the colours of a theme by the names of their variables; one says whether it is dark."""
    found = {_IS_DARK: str(int(theme is DARK)), _IS_LIGHT: str(int(theme is not DARK))}
    for role, value in vars(theme).items():
        if isinstance(value, Mapping):
            found |= {_variable(role, key): colour for key, colour in value.items()}
        elif role != "name":
            found[_variable(role)] = value
    return found


def _variable(role: str, key: object = "") -> str:
    """Return the name of the variable of a colour."""
    return f"--pp-{role}-{getattr(key, 'name', key)}".rstrip("-").replace(" ", "-")


@cache
def _variables() -> Theme:
    """Return the light theme with a variable in place of each colour, which is its fallback."""
    found: dict[str, Any] = {"name": LIGHT.name}
    for role, value in list(vars(LIGHT).items())[1:]:
        if isinstance(value, Mapping):
            found[role] = {key: f"var({_variable(role, key)},{colour})" for key, colour in value.items()}
        else:
            found[role] = f"var({_variable(role)},{value})"
    return Theme(**found)
