"""One colour per kind for every chart, distinct for colour-blind readers and in greyscale too."""

from __future__ import annotations

from ppsim.actions import Kind

# tests/test_plots_palette.py enforces these CIELAB differences between kinds and idle time: at least 20 for normal
# sight, protanopia, deuteranopia and tritanopia; at least 9 in lightness, for greyscale, between those of one chart.
# An OVERLAP_F_B slot shows its two parts; its own colour is for text.
COLOURS = {
    Kind.F: "#2853a3",
    Kind.B: "#ffd426",
    Kind.I: "#c64027",
    Kind.W: "#0bac62",
    Kind.R: "#f688e6",
    Kind.S: "#c369ff",
    Kind.T: "#a55a87",
    Kind.OVERLAP_F_B: "#52295f",
}
IDLE, IDLE_TITLE = "#b2bab1", "idle"
IDLE_DARK = "#454945"  # on a page with a dark background
IDLE_HATCH, IDLE_HATCH_DARK = "#8c948b", "#6a706a"  # lines over idle time
# From idle to busy, for actions that are too narrow to show; a dark background reverses lightness.
BUSY = (IDLE, "#96a8c1", "#5d83c4", "#16305f")
BUSY_DARK = (IDLE_DARK, "#50607c", "#6487c2", "#9dbdf2")
# Causes of idle time; each has a different lightness, and NOT_IDLE too.
CAUSE_COLOURS = {
    "fill": "#85abde",
    "drain": "#1c50cc",
    "dependency": "#ca5800",
    "recompute": "#604054",
    "imbalance": "#ded03a",
    "transfer": "#382890",
    "queue": "#63d25a",
    "sharding": "#676e4b",
    "reload": "#1e041b",
    "optimizer": "#002604",
    "jitter": "#ab88a2",
    "overhead": "#38205e",
}
NOT_IDLE = "#e9ece9"
TRANSFER_FORWARD = "#1f4e86"
TRANSFER_BACKWARD = "#8a5a00"
CRITICAL = "#000000"
INK = "#222222"
TITLES = {
    Kind.F: "F forward",
    Kind.B: "B full backward",
    Kind.I: "I input-gradient backward",
    Kind.W: "W weight-gradient backward",
    Kind.R: "R forward again (recompute)",
    Kind.S: "S output layer's part forward",
    Kind.T: "T output layer's part backward",
    Kind.OVERLAP_F_B: "OVERLAP_F_B, F and B in one slot",
}
_PALEST = 0.55  # fraction of white in the last shade


def shade_colour(kind: int, shade: int, shades: int) -> str:
    """Return the colour of shade number `shade` of `shades`; 0 is the full colour of the kind, later ones are paler."""
    colour = COLOURS[Kind(kind)]
    if shades <= 1:
        return colour
    step = 0.38 if shades == 2 else _PALEST
    return mix_with_white(colour, step * shade / (shades - 1))


def mix_with_white(colour: str, fraction: float) -> str:
    """Return `colour` mixed with this fraction (0..1) of white, as #rrggbb."""
    return "#" + "".join(f"{round(channel + (255 - channel) * fraction):02x}" for channel in channels(colour))


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue (0..255) of #rrggbb."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def label_colour(colour: str) -> str:
    """Return black or white, whichever has the higher contrast on `colour` (WCAG 2 contrast ratio)."""
    return "#ffffff" if contrast("#ffffff", colour) >= contrast("#000000", colour) else "#000000"


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
