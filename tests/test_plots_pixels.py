"""The value of a pixel: the mean of the picture at unlimited zoom, in every chart and at every size."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from charts import (
    LIGHT,
    PixelColumns,
    bins,
    footprint,
    from_linear,
    is_mixed,
    light_of,
    lines_of,
    make_boxes,
    picture,
    png_address,
    row_gap,
    shares,
    to_linear,
    windows,
)  # fmt: skip
from command_line import ROOT
from matplotlib.image import imread
from pages import page_of, texts
from timelines import stepped

import ppsim
from ppsim.actions import Kind

COSTS = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)


def boxes_of(name="1f1b", devices=4, microbatches=8, costs=COSTS, **options):
    return make_boxes(ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs))


def averaged(boxes, columns, height, times=20, gap=0.0, rule=0.0, dense=1.0):
    """The picture as the mean of one drawn `times` as large, over the windows of the small one's columns."""
    fine = PixelColumns(columns.first, columns.last, columns.number * times)
    light = to_linear(picture(boxes, LIGHT, fine, height, gap=gap, rule=rule) / 255)
    before = np.concatenate([np.zeros((height, 1, 3)), np.cumsum(light, axis=1), np.zeros((height, 1, 3))], axis=1)
    light = np.concatenate([light, light[:, -1:]], axis=1)
    step = (columns.last - columns.first) / fine.number
    devices, found = boxes.timeline.schedule.devices, np.empty((height, columns.number, 3))
    begins = np.rint(np.arange(devices + 1) * height / devices).astype(int)

    def until(lines, seconds):
        place = np.clip((seconds - columns.first) / step, 0, fine.number)
        whole = np.minimum(place.astype(int), fine.number - 1)
        return before[lines][:, whole] + (place - whole)[..., None] * light[lines][:, whole]

    for device in range(devices):
        lines, (first, last) = slice(*begins[device : device + 2]), windows(boxes, device, columns, dense)
        found[lines] = (until(lines, last) - until(lines, first)) / (last - first)[..., None] * step
    return from_linear(found)


@pytest.mark.parametrize(("name", "height", "times"), [("1f1b", 128, 80), ("zb-v", 64, 80), ("dualpipe", 384, 80)])
def test_a_large_chart_is_the_mean_of_one_drawn_many_times_as_large(name, height, times):
    boxes = boxes_of(name, 64, 256)
    columns = PixelColumns(0.0, boxes.timeline.makespan, 700)
    small = picture(boxes, LIGHT, columns, height).astype(int)
    assert np.abs(small - averaged(boxes, columns, height, times).astype(int)).max() <= 2


@pytest.mark.parametrize(("name", "times"), [("1f1b", (250, 450)), ("zb-v", (150, 500)), ("dualpipe", (250, 500))])
@pytest.mark.parametrize("dense", [0.7, 1.0, 2.0])
def test_mixtures_of_narrow_actions_are_flat_at_any_density(name, times, dense):
    boxes = boxes_of(name, 64, 256)
    columns = PixelColumns(0.0, boxes.timeline.makespan, round(940 * dense))
    first, last = (round(second * columns.per_second) for second in times)
    seen = picture(boxes, LIGHT, columns, 64, dense=dense).astype(float)
    mixed = seen[24:40, first:last]
    assert mixed.std(axis=(0, 1)).max() < 1.5  # of 255; it was up to 17
    if name == "1f1b":  # up to idle time; the first backward was seen beside it
        begin = boxes.start[(boxes.kind == Kind.B) & (boxes.device == 32)].min() * columns.per_second
        beside = seen[32, int(begin + 0.5 + footprint(boxes, columns.per_second, dense) / 2) :][:4]
        assert np.abs(beside - mixed.mean(axis=(0, 1))).max() < 20  # it was 91


def test_mixtures_are_flat_up_to_sharp_borders():
    boxes = boxes_of("v-half", 64, 256, replace(COSTS, latency=0.0))
    seen = picture(boxes, LIGHT, PixelColumns(0.0, boxes.timeline.makespan, 2000), 64, dense=2.0).astype(int)
    changes = (np.abs(np.diff(seen[8:56], axis=1)).max(axis=2) > 2).sum(axis=1)
    assert changes[1::2].max() < 18  # of 10 borders; it was 231, with teeth in every second row
    assert changes[::2].max() < 32  # where three borders have actions of several seconds between two mixtures


def test_mixtures_of_interleaved_stages_of_unequal_lengths_have_no_stripes():
    boxes = make_boxes(ppsim.load_config(ROOT / "configs" / "llama-3-70b-64xh100.yaml").simulate())
    seen = picture(boxes, LIGHT, PixelColumns(0.0, boxes.timeline.makespan, 1940), 4, dense=2.0).astype(int)
    steady = seen[1:, 200:1700]
    off = np.abs(steady - np.median(steady, axis=1)[:, None]).max(axis=2)
    assert np.count_nonzero((off >= 3) & (off < 20), axis=1).max() < 15  # it was 850; larger ones are other areas


def test_fused_slots_of_two_stages_of_unequal_lengths_repeat():
    costs = ppsim.Costs(forward=[1.0, 1.1] * 4, overlap=2.0, per="stage")
    boxes = boxes_of("dualpipe", devices=8, microbatches=32, costs=costs)
    assert boxes.slot.any()
    assert boxes.is_even
    noisy = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=32), COSTS, jitter=ppsim.Jitter(actions=0.1))
    assert not make_boxes(noisy).is_even


@pytest.mark.parametrize(("width", "mixes"), [(1.9, True), (2.1, False)])
def test_boxes_under_two_pixels_mix(width, mixes):
    assert is_mixed(boxes_of("zb-v", 8, 32).in_rows(13.0), 2 * width) == mixes  # actions of half a second


def test_a_figures_rows_are_the_picture():
    boxes = boxes_of("zb-h1", 64, 256)
    figure = boxes.timeline.plot(labels=False)
    figure.savefig(file := io.BytesIO(), format="png", dpi=150)
    pixels = np.rint(imread(io.BytesIO(file.getvalue()))[..., :3] * 255).astype(int)
    figure.set_dpi(150)
    area = figure.axes[0].get_window_extent()
    left, right, top = round(area.x0), round(area.x1), len(pixels) - round(area.y1)
    height = round(area.height)
    columns = PixelColumns(0.0, boxes.timeline.makespan, right - left)
    rule = 150 / 144  # pixels of the picture per reference pixel
    second = boxes.median * columns.per_second / rule
    gap = row_gap(area.height / 64 / rule, second) * rule  # between the rows, a faint one
    expected = averaged(boxes, columns, height, 40, gap, rule / columns.per_second, rule).astype(int)
    inside = slice(2, right - left - 4)  # the line at the end of the step is drawn upon the last pixels
    assert np.abs(pixels[top : top + height, left:right][:, inside] - expected[:, inside]).max() <= 2


@pytest.mark.parametrize(("box", "reach"), [(0.5, 1.5), (3.0, 0.75), (3.5, 0.5)])  # columns
def test_boxes_and_idle_time_have_their_colours_up_to_half_a_footprint_from_their_borders(box, reach):
    boxes = boxes_of("1f1b", 16, 32)
    finish = boxes.timeline.makespan
    columns = PixelColumns(0.0, finish, round(box / boxes.median * finish))
    seen, place, found = picture(boxes, LIGHT, columns, 16), np.arange(columns.number) + 0.5, set()
    for device in range(16):
        mine, colours = boxes.device == device, np.full(columns.number, "", object)
        begin, end = (second[mine] * columns.per_second for second in (boxes.start, boxes.end))
        fills = [LIGHT.kinds[Kind(kind)] for kind in boxes.kind[mine].tolist()]
        idle = zip([LIGHT.idle] * (len(end) - 1), end[:-1], begin[1:], strict=True)
        for fill, low, high in [*zip(fills, begin, end, strict=True), *idle]:
            colours[(place >= low + reach + 0.01) & (place <= high - reach - 0.01)] = fill
        for column in np.flatnonzero(colours):
            assert seen[device, column].tolist() == from_linear(light_of(colours[column])).tolist()
        found |= {*colours}
    assert LIGHT.idle in found
    assert (LIGHT.kinds[Kind.B] in found) == (box >= 3)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_gaps_of_paper_at_the_begin_of_boxes_are_part_of_the_mean(name):
    boxes = boxes_of(name, 8, 16)
    columns = PixelColumns(0.0, boxes.timeline.makespan, 777)
    rule = 1.04 / columns.per_second
    small = picture(boxes, LIGHT, columns, 160, rule=rule).astype(int)
    assert np.abs(small - averaged(boxes, columns, 160, rule=rule).astype(int)).max() <= 2
    assert np.abs(small - averaged(boxes, columns, 160).astype(int)).max() > 100


def test_wide_boxes_have_their_kinds_colours_and_idle_time_its_own():
    boxes = boxes_of(costs=ppsim.Costs(forward=1, backward=2))
    seen = picture(boxes, LIGHT, PixelColumns(0.0, 33.0, 330), 80)
    assert seen[0, 5].tolist() == from_linear(light_of(LIGHT.kinds[Kind.F])).tolist()
    assert seen[79, 5].tolist() == from_linear(light_of(LIGHT.idle)).tolist()
    after = picture(boxes, LIGHT, PixelColumns(0.0, 66.0, 660), 80)
    assert after[0, -1].tolist() == [255, 255, 255]


def test_shares_of_bins_add_up_to_the_busy_time():
    boxes = boxes_of("zb-h1")
    first, last = bins(PixelColumns(0.0, boxes.timeline.makespan, 37), 1.0, boxes.timeline.makespan)
    for device, busy in enumerate(boxes.timeline.device_busy):
        mine = boxes.device == device
        assert shares(boxes.start[mine], boxes.end[mine], first, last) @ (last - first) == pytest.approx(busy)


def test_a_pixel_is_the_mean_of_its_parts_for_random_spans():
    rng = np.random.default_rng(0)
    length = rng.uniform(0.1, 1, 400)
    start = np.cumsum(length + rng.uniform(0, 0.3, 400)) - length
    fine, coarse = (
        shares(start, start + length, *bins(PixelColumns(0.0, 300.0, number), 1.0, 400.0)) for number in (3000, 300)
    )
    assert fine.reshape(300, 10).mean(axis=1) == pytest.approx(coarse)


def test_a_column_has_the_mean_of_one_to_three_by_the_narrowest_median_box_of_a_picture():
    boxes = boxes_of("zb-h1", 64, 256)  # actions of 1 s
    assert [footprint(boxes, width) for width in (0.1, 1.5, 2.0, 3.0, 3.5, 20.0)] == [3, 3, 2.5, 1.5, 1, 1]
    assert footprint(replace(boxes, narrowest=0.5), 4.0) == 2.5


@pytest.mark.parametrize(("width", "pixels"), [(0.3, 3.0), (1.0, 3.0), (1.25, 1.875), (1.5, 0.75)])
def test_narrow_boxes_have_the_mean_of_as_many_pixels_of_the_rules_at_any_density(width, pixels):
    boxes = boxes_of("zb-h1", 64, 256)
    for dense in (2.0, 4.0):  # columns per reference pixel
        assert footprint(boxes, width * dense, dense) == pytest.approx(pixels * dense)


def test_lines_of_pixels_are_means_by_area():
    lights = np.array([1.0, 0.0, 0.5])[:, None, None] * np.ones((3, 1, 3))
    assert lines_of(np.array([0.0, 1.5, 2.0, 3.0]), lights, 3)[:, 0, 0].tolist() == pytest.approx([1.0, 0.5, 0.5])


def test_a_fused_slot_has_two_halves_and_lanes_their_own_lines():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])
    boxes = make_boxes(ppsim.simulate(schedule, ppsim.Costs(overlap=2.0)))
    seen = picture(boxes, LIGHT, PixelColumns(0.0, boxes.timeline.makespan, 80), 40)
    assert [from_linear(light_of(LIGHT.kinds[kind])).tolist() for kind in (Kind.F, Kind.B)] == [
        seen[line, 30].tolist() for line in (10, 30)
    ]
    laned = make_boxes(stepped())
    rows = picture(laned, LIGHT, PixelColumns(0.0, laned.timeline.makespan, 720), 80)
    assert rows[0, 15].tolist() == from_linear(light_of(LIGHT.lanes["gathers"])).tolist()
    assert rows[39, 655].tolist() == from_linear(light_of(LIGHT.lanes["reductions"])).tolist()
    assert rows[20, 700].tolist() == from_linear(light_of(LIGHT.lanes["optimizer steps"])).tolist()


def test_a_png_address_holds_the_pixels():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    content = base64.b64decode(png_address(pixels).partition(",")[2])
    assert np.array_equal(np.rint(255 * imread(io.BytesIO(content))[..., :3]), pixels)


def test_no_script_of_the_page_names_a_colour():
    text = re.sub(r"const THEMES = \{.*\};", "", texts(page_of(boxes_of().timeline))[1])
    assert len(text) > 30_000
    assert not re.findall(r'"#[0-9a-f]{3,6}"', text)
