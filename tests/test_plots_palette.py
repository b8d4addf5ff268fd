"""The colours: apart for every reader in every theme, and text that can be read on them."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from charts import DARK, GREY, LIGHT, THEMES, TITLES, contrast, from_linear, light_of
from colour_distances import VISION, apart, ciede2000, closest, lab, lighter

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.analysis import CAUSES

EVERY = pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
COLOURED = pytest.mark.parametrize("theme", [theme for theme in THEMES.values() if theme is not GREY], ids=str)
CORE = (Kind.F, Kind.B, Kind.I, Kind.W)


def touching(theme):
    return {**theme.kinds, "idle": theme.idle, "paper": theme.paper}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
        ((50, -0.001, 2.49), (50, 0.0011, -2.49), 4.7461),
    ],
)
def test_the_distance_agrees_with_its_papers_table(one, other, expected):
    assert ciede2000(one, other) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("vision", VISION)
@COLOURED
def test_kinds_idle_time_and_paper_differ_for_every_reader(theme, vision):
    assert closest(touching(theme), partial(apart, vision=vision))[0] >= 12


@EVERY
def test_the_usual_kinds_idle_time_and_paper_differ_in_lightness(theme):
    core = {name: colour for name, colour in touching(theme).items() if name in (*CORE, "idle", "paper")}
    assert closest(core, lighter)[0] >= (12 if theme is GREY else 8)
    if theme is GREY:
        assert closest(touching(theme), lighter)[0] >= 8


@EVERY
def test_kinds_stand_out_from_idle_time(theme):
    least = {"light": 1.5, "dark": 3.0, "grey": 1.25}[theme.name]
    assert min(contrast(colour, theme.idle) for colour in theme.kinds.values()) >= least
    assert contrast(theme.kinds[Kind.B], theme.idle) >= 1.75


@EVERY
def test_text_and_marks_are_read_on_their_grounds(theme):
    assert min(contrast(theme.on[kind], colour) for kind, colour in theme.kinds.items()) >= 4.5
    assert min(contrast(theme.on_lanes[sort], colour) for sort, colour in theme.lanes.items()) >= 4.5
    assert min(contrast(ink, theme.paper) for ink in (theme.text, theme.quiet)) >= 4.5
    assert contrast(theme.text, theme.idle) >= 4.5
    assert min(contrast(line, theme.paper) for line in (theme.limit, theme.critical, theme.memory, theme.edge)) >= 3
    assert contrast(theme.critical, theme.halo) >= 7
    assert contrast(theme.limit, theme.halo) >= 4.5


@pytest.mark.parametrize("vision", VISION)
@COLOURED
def test_causes_differ_from_each_other_for_every_reader(theme, vision):
    assert closest({**theme.causes, "not idle": theme.not_idle}, partial(apart, vision=vision))[0] >= 12


@COLOURED
def test_causes_differ_from_the_mixed_colours_of_narrow_actions(theme):
    f, b, i, w = (light_of(theme.kinds[kind]) for kind in CORE)
    means = (f / 4 + 3 * b / 4, f / 3 + 2 * b / 3, f / 2 + b / 2, (f + i + w) / 3)
    mixed = [f"#{from_linear(mean).tobytes().hex()}" for mean in means]
    assert min(apart(cause, mix) for cause in theme.causes.values() for mix in mixed) >= 12
    assert min(apart(theme.causes["dependency"], mix) for mix in mixed) >= 18


@EVERY
def test_mixed_colours_of_narrow_actions_differ_from_each_other(theme):
    f, b, i, w = (light_of(theme.kinds[kind]) for kind in CORE)
    means = {"F + B": (f + 2 * b) / 3, "I + W": (i + w) / 2, "F + I": (f + i) / 2, "F + I + W": (f + i + w) / 3}
    mixed = {name: f"#{from_linear(mean).tobytes().hex()}" for name, mean in means.items()}
    if theme is GREY:
        assert closest({**mixed, "B": theme.kinds[Kind.B], "W": theme.kinds[Kind.W]}, lighter)[0] >= 6
    else:
        assert closest(mixed, apart)[0] >= 10


@COLOURED
def test_causes_are_duller_than_kinds_and_differ_from_each(theme):
    assert min(apart(cause, kind) for cause in theme.causes.values() for kind in theme.kinds.values()) >= 12

    def chroma(colour):
        return float(np.hypot(*lab(colour)[1:]))

    assert min(chroma(theme.kinds[kind]) for kind in CORE) >= 4 + max(map(chroma, theme.causes.values()))


def test_causes_differ_in_grey_and_neighbours_in_their_order_more():
    assert closest({**GREY.causes, "not idle": GREY.not_idle}, lighter)[0] >= 5.9
    assert min(lighter(one, other) for one, other in pairwise([*GREY.causes.values(), GREY.not_idle])) >= 8


@COLOURED
def test_the_bar_of_what_takes_longer_differs_from_all_that_it_touches_and_from_other_signs(theme):
    for vision in VISION:
        assert min(apart(theme.longer, other, vision) for other in touching(theme).values()) >= 12
    others = (*theme.causes.values(), *theme.lanes.values(), theme.limit, theme.critical)
    assert min(apart(theme.longer, other) for other in others) >= 12
    assert min(contrast(theme.longer, ground) for ground in (theme.paper, theme.idle)) >= 3


@EVERY
def test_causes_stand_out_from_paper(theme):
    assert min(contrast(colour, theme.paper) for colour in theme.causes.values()) >= 1.5


@COLOURED
def test_lanes_differ_from_each_other_and_from_all_that_they_touch(theme):
    beside = {**touching(theme), "ground": theme.not_idle, **theme.lanes}
    for sort, colour in theme.lanes.items():
        others = [other for name, other in beside.items() if name != sort]
        for vision in VISION:
            assert min(apart(colour, other, vision) for other in others) >= 12
        assert min(apart(colour, cause) for cause in theme.causes.values()) >= 12


def test_lanes_stand_out_from_a_dark_ground():
    assert min(contrast(colour, DARK.not_idle) for colour in DARK.lanes.values()) >= 3


@pytest.mark.parametrize(("colours", "most"), [("lanes", 45), ("causes", 20)])
def test_lanes_and_causes_keep_their_hue_in_every_theme(colours, most):
    def hue(colour):
        return float(np.degrees(np.arctan2(*lab(colour)[:0:-1])))

    light, dark = getattr(LIGHT, colours), getattr(DARK, colours)
    coloured = [name for name in light if all(np.hypot(*lab(one[name])[1:]) >= 10 for one in (light, dark))]
    assert len(coloured) >= 7
    for name in coloured:
        turn = abs(hue(light[name]) - hue(dark[name])) % 360
        assert min(turn, 360 - turn) <= most, name


@EVERY
def test_themes_name_the_same_things(theme):
    compute = {kind for kind in Kind if kind < FIRST_TRANSFER} | {Kind.OVERLAP_F_B}
    assert set(theme.kinds) == set(theme.on) == set(TITLES) == compute
    assert list(theme.causes) == list(CAUSES)
    assert list(theme.lanes) == list(LIGHT.lanes)
