"""Distances between colours as readers see them: CIEDE2000, lightness and contrast, with and without all cones."""

from itertools import combinations

import numpy as np
from charts import light_of

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear-light sRGB.
VISION = {
    "normal": np.eye(3),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def lab(colour, vision="normal"):
    """CIELAB (D65) of #rrggbb as an eye sees it."""
    linear = np.clip(VISION[vision] @ light_of(colour), 0, 1)
    ratio = (TO_XYZ @ linear) / TO_XYZ.sum(axis=1)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one, other):
    """Colour difference of two CIELAB colours; Sharma, Wu and Dalal 2005."""
    (L1, a1, b1), (L2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    G = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    a1, a2 = (1 + G) * a1, (1 + G) * a2
    C1, C2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    turn = 0.0 if C1 * C2 == 0 else (h2 - h1 + 180) % 360 - 180
    dL, dC, dH = L2 - L1, C2 - C1, 2 * np.sqrt(C1 * C2) * np.sin(np.radians(turn / 2))
    L, C = (L1 + L2) / 2, (C1 + C2) / 2
    h = h1 + h2 if C1 * C2 == 0 else (h1 + turn / 2) % 360
    T = (
        1 - 0.17 * np.cos(np.radians(h - 30)) + 0.24 * np.cos(np.radians(2 * h))
        + 0.32 * np.cos(np.radians(3 * h + 6)) - 0.20 * np.cos(np.radians(4 * h - 63))
    )  # fmt: skip
    SL = 1 + 0.015 * (L - 50) ** 2 / np.sqrt(20 + (L - 50) ** 2)
    SC, SH = 1 + 0.045 * C, 1 + 0.015 * C * T
    RT = -np.sin(np.radians(60 * np.exp(-(((h - 275) / 25) ** 2)))) * 2 * np.sqrt(C**7 / (C**7 + 25.0**7))
    return float(np.sqrt((dL / SL) ** 2 + (dC / SC) ** 2 + (dH / SH) ** 2 + RT * (dC / SC) * (dH / SH)))


def apart(one, other, vision="normal"):
    """CIEDE2000 of two colours #rrggbb."""
    return ciede2000(lab(one, vision), lab(other, vision))


def lighter(one, other):
    """Difference in lightness, L*, of two colours #rrggbb."""
    return float(abs(lab(one)[0] - lab(other)[0]))


def closest(named, measure):
    """The smallest measure over all pairs of a dict of colours, with the pair."""
    return min((float(measure(named[a], named[b])), a, b) for a, b in combinations(named, 2))
