"""The colours: apart for every reader, and labels that can be read on them."""

import itertools
from functools import cache

import numpy as np
import pytest
from pages import lane_colours

import ppsim
from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.plots import palette

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
RGB_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


@cache
def colours_of_lanes():
    """The colour of each sort of thing that charts show in addition to actions."""
    lists = [["0F0", "0OFFLOAD0", "0F1", "0R1", "0RELOAD0", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    program = ppsim.lower(ppsim.Schedule.from_orders(lists), sharded=True)
    costs = ppsim.Costs(offload_latency=1.0, unshard=1.0, reduce_grad=1.0, optimizer_step=1.0, vocabulary_reduce=1.0)
    split = ppsim.simulate(ppsim.build("vocab-1f1b", devices=2, microbatches=1), costs)
    colours = {**lane_colours(ppsim.simulate(program, costs, optimizer="sync")), **lane_colours(split)}
    assert len(colours) == 6
    return list(colours.values())


def cielab(colour: str, sight: str) -> np.ndarray:
    channels = np.array(palette.channels(colour)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = RGB_TO_XYZ @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_kinds_and_idle_time_are_told_apart_by_every_reader(sight):
    for one, other in itertools.combinations([*palette.COLOURS.values(), *colours_of_lanes(), palette.IDLE], 2):
        assert np.linalg.norm(cielab(one, sight) - cielab(other, sight)) >= 20, (one, other)


@pytest.mark.parametrize("sight", ["normal", "deuteranopia"])
def test_kinds_of_one_chart_differ_in_lightness(sight):
    grounds = [palette.COLOURS[kind] for kind in (Kind.F, Kind.B, Kind.I, Kind.W)] + [palette.IDLE]
    for one, other in itertools.combinations(grounds, 2):
        assert abs(cielab(one, sight)[0] - cielab(other, sight)[0]) >= 8.5, (one, other)


@pytest.mark.parametrize("sight", SIGHT)
def test_causes_of_idle_time_are_told_apart_by_every_reader_and_without_colour(sight):
    for one, other in itertools.combinations([*palette.CAUSE_COLOURS.values(), palette.NOT_IDLE], 2):
        one_lab, other_lab = cielab(one, sight), cielab(other, sight)
        assert np.linalg.norm(one_lab - other_lab) >= 18, (one, other)
        if sight in ("normal", "deuteranopia"):
            assert abs(one_lab[0] - other_lab[0]) >= 6, (one, other)


def test_idle_time_is_no_white_paper():
    assert palette.contrast(palette.IDLE, "#ffffff") >= 1.8


def test_labels_stand_out_on_every_shade_of_every_kind():
    for kind, shades in itertools.product(palette.COLOURS, (1, 2, 4, 8)):
        for shade in range(shades):
            ground = palette.shade_colour(kind, shade, shades)
            assert palette.contrast(palette.label_colour(ground), ground) >= 4.5


def test_later_local_stages_are_paler():
    shades = [palette.shade_colour(Kind.F, shade, 4) for shade in range(4)]
    lightness = [cielab(colour, "normal")[0] for colour in shades]
    assert shades[0] == palette.COLOURS[Kind.F]
    assert lightness == sorted(lightness)
    assert len(set(shades)) == 4


def test_every_kind_that_is_drawn_has_a_colour_and_a_title():
    compute = {kind for kind in Kind if kind < FIRST_TRANSFER}
    assert set(palette.COLOURS) == set(palette.TITLES) == compute | {Kind.OVERLAP_F_B}
