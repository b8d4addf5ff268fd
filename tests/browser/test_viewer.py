"""The viewer in a real Chromium: it says what it draws, by mouse, wheel, touch and keys, on screen and paper."""

import base64
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from charts import (
    LIGHT,
    THEMES,
    PixelColumns,
    areas,
    bins,
    costs_text,
    footprint,
    from_linear,
    kind_shares,
    light_of,
    make_boxes,
    shares,
    shown_length,
    windows,
)
from command_line import CONFIGS
from pages import Iterations, Marks, page_of
from selenium.webdriver import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.keys import Keys

import ppsim
from ppsim.actions import Kind

FOUR = ("1f1b", "zb-h1", "zb-v", "dualpipe")
COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)
CANVAS = ".viewer canvas"
LEFT, RIGHT, TOP, ROW, AXIS = 54, 104, 42, 60, 24  # pixels: names, idle by device, what is above the rows, a row


@pytest.fixture(scope="module")
def timeline():
    return ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), COSTS)


@pytest.fixture(scope="module")
def chart(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "chart.html"
    return written(path, timeline)


@pytest.fixture(scope="module")
def stacked(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "stacked.html"
    other = ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=8), COSTS)
    return written(path, timeline, other)


def written(path, *timelines, **options):
    """Write the page of timelines, and return its address."""
    path.write_text(page_of(*timelines, **options), encoding="utf-8")
    return path.as_uri()


def place(page, timeline, action, device):
    """Pixels within the canvas of the middle of an action of a chart that stands alone and shows memory."""
    wide = page.run(f"return document.querySelector('{CANVAS}').clientWidth") - LEFT - RIGHT
    orders = [label for order in timeline.schedule.orders() for label in order]
    index = orders.index(action)
    middle = (timeline.start[index] + timeline.end[index]) / 2
    return LEFT + middle / (timeline.makespan * 1.004) * wide, TOP + (device + 0.5) * row_height(page)


def row_height(page):
    """Pixels of a row of a chart of 4 devices that stands alone and shows memory: at most 60."""
    tall = page.run(f"return document.querySelector('{CANVAS}').clientHeight") - 20 - AXIS
    return min(4 * ROW, tall - 22 - round(min(0.22 * tall, 56)) - 8) / 4


def pixels_of(page):
    """The canvas as (height, width, 3) numbers."""
    wide, tall, data = page.run(
        f"const c = document.querySelector('{CANVAS}');"
        "const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height), parts = [];"
        "for (let at = 0; at < data.length; at += 3e4)"
        "  parts.push(String.fromCharCode(...data.subarray(at, at + 3e4)));"
        "return [c.width, c.height, btoa(parts.join(''))]"
    )
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(tall, wide, 4)[..., :3]


def channels(colour):
    """Red, green and blue of #rrggbb."""
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], float)


def point(page, x, y):
    """Move the mouse to a place of the canvas."""
    canvas = page.find(CANVAS)
    size = canvas.size
    move = ActionChains(page.browser).move_to_element_with_offset(canvas, x - size["width"] / 2, y - size["height"] / 2)
    move.perform()


def wheel(page, x, y, amount, shift=False):
    canvas = page.find(CANVAS)
    origin = ScrollOrigin.from_element(canvas, int(x - canvas.size["width"] / 2), int(y - canvas.size["height"] / 2))
    chain = ActionChains(page.browser)
    if shift:
        chain.key_down(Keys.SHIFT)
    chain.scroll_from_origin(origin, 0, amount)
    if shift:
        chain.key_up(Keys.SHIFT)
    chain.perform()


FRAMES = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
SHOWN = "const tip = document.querySelector('.tip'); return tip.style.display === 'block' ? tip.textContent : ''"


def tip(page):
    return page.until(SHOWN).replace("\xa0", " ")  # numbers keep their units


def test_hover_tells_an_action_what_it_waited_for_and_times_that_add_up(page, chart, timeline):
    page.open(chart)
    point(page, *place(page, timeline, "2F0", 2))
    text = tip(page)
    assert text.startswith("2F0   F forward\ndevice 2, stage 2, microbatch 0\n")
    assert "its input from 1F0 on device 1" in text
    start, length, end = (
        float(number) for number in re.findall(r"start (\S+) s, length (\S+) s, end (\S+) s", text)[0]
    )
    assert start + length == pytest.approx(end, abs=1e-12)


def test_a_transfer_that_takes_no_time_is_not_told(page, tmp_path):
    path = tmp_path / "chart.html"
    path.write_text(page_of(timeline := ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8))))
    page.open(path.as_uri())
    point(page, *place(page, timeline, "2F0", 2))
    assert "started after: its input from 1F0 on device 1, which ended at 2.0 s" in tip(page)
    page.keys("body", "c", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text(".selection") == "critical path, action 2 of 22: 1F0 waits for 0F0 (F forward, 1.0 s)"


def test_hover_tells_idle_time_with_what_comes_next(page, chart):
    page.open(chart)
    point(page, LEFT + 20, TOP + 3.5 * row_height(page))
    assert tip(page).startswith(
        "idle: fill\ndevice 3\nstart 0.0 s, length 3.3 s, end 3.3 s\nthen 3F0, which waited for: its input"
    )


def test_hover_tells_transfers_memory_and_the_ledger_of_a_device(page, chart, timeline):
    page.open(chart + "#on=transfers,memory,ledger")
    row = row_height(page)
    point(page, LEFT + 20, TOP + 4 * row + 30)
    assert re.match(r"device \d: [0-9.]+ activations? at [0-9]+\.[0-9] s, (its peak|peak [0-9.]+)$", tip(page))
    tip_box = page.find(".tip").rect
    assert tip_box["y"] + tip_box["height"] < page.find(CANVAS).rect["y"] + TOP + 4 * row + 30  # not over what is below
    wide = page.find(CANVAS).size["width"]
    point(page, wide - 20, TOP + row / 2)
    assert tip(page).startswith("device 0: idle 30.6 % of the step\ndependency: ")
    x = LEFT + 1.05 / (timeline.makespan * 1.004) * (wide - LEFT - RIGHT)
    point(page, x, TOP + row - 2)
    assert tip(page).startswith("0SEND_F0   transfer\nfrom device 0 to device 1\nstart 1.0 s, length 0.1 s, end 1.1 s")


def test_a_click_follows_what_an_action_waited_for_back_to_the_start(page, chart, timeline):
    page.open(chart)
    point(page, *place(page, timeline, "0B7", 0))
    ActionChains(page.browser).click().perform()
    told = page.until("return document.querySelector('.selection').textContent")
    assert told.startswith("0B7   B backward · device 0, ")
    actions, worked, moved = re.findall(r"step's start: (\d+) actions of (\S+) s, (\S+) s in transfers", told)[0]
    assert float(worked) + float(moved) == pytest.approx(timeline.makespan, rel=1e-4)
    assert int(actions) == len(timeline.critical_path())
    at = place(page, timeline, "0B7", 0)
    for moved_to, is_shown in ((at[0] + 2, False), (at[0] - 60, True)):  # its words are below the chart
        point(page, moved_to, at[1])
        assert bool(page.run(SHOWN)) == is_shown
    page.keys(CANVAS, Keys.ESCAPE)
    assert page.text(".selection") == ""


def test_search_finds_an_action_by_its_name(page, stacked):
    page.open(stacked)
    page.keys(".viewer input[type=search]", "3F7")
    assert page.text(".selection").startswith("1 of 2: 1f1b · 3F7 ")
    first, second = "1 of 2 (Enter: next): 1f1b · 3F7 ", "2 of 2 (Enter: next): zb-h1 · 3F7 "
    for told in (first, second, first):  # the first Enter takes what is in sight
        page.keys(".viewer input[type=search]", Keys.ENTER)
        assert page.text(".selection").startswith(told)
    page.keys(".viewer input[type=search]", "9")
    assert "no action is named 3F79" in page.text(".selection")
    page.until("return !location.hash.includes('at=')")
    page.keys(".viewer input[type=search]", Keys.BACKSPACE, *[Keys.BACKSPACE] * 3)
    page.until("return !document.querySelector('.selection').textContent.includes('Enter: next')")


def test_keys_choose_step_follow_and_switch(page, chart):
    page.open(chart)
    page.keys(CANVAS, Keys.ENTER)
    assert page.text(".selection").startswith("0F0 ")
    page.keys(CANVAS, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text(".selection").startswith("0F2 ")
    page.keys(CANVAS, Keys.ARROW_DOWN)
    assert page.text(".selection").startswith("1F1 ")
    page.keys(CANVAS, Keys.BACKSPACE)
    assert page.text(".selection").startswith(("0SEND_F1 ", "1F0 "))
    page.run("document.activeElement.blur()")  # keys work wherever nothing is typed
    page.keys("body", "c", "t", "m", "i")
    pressed = (
        "return [...document.querySelectorAll('.switches [aria-pressed=true]:not([hidden])')]"
        ".map((one) => one.textContent)"
    )
    assert page.run(pressed) == ["Critical path", "Transfers"]
    page.keys(CANVAS, "i")
    assert page.run(pressed) == ["Idle by cause", "Critical path", "Transfers"]


def test_the_state_stands_in_the_address_and_comes_back(page, chart):
    page.open(chart)
    page.keys(CANVAS, "c", "+", "+", "]", Keys.ENTER)
    before = page.until("return location.hash.includes('at=') && location.hash")
    told = page.text(".selection")
    page.open(chart.split("#")[0] + before)
    page.until("return document.querySelector('.selection').textContent")
    assert page.text(".selection") == told
    assert page.run("return location.hash") == before
    assert {part.split("=")[0] for part in before[1:].split("&")} == {"t", "y", "on", "at"}


@pytest.mark.parametrize("key", ["0", Keys.HOME])
def test_zooming_and_going_back_shows_all(page, chart, key):
    page.open(chart)
    page.keys(CANVAS, "+", "+", Keys.SHIFT + Keys.ARROW_RIGHT)
    page.until("return location.hash.includes('t=')")
    page.keys(CANVAS, key)
    page.until("return !location.hash.includes('t=')")
    page.keys(CANVAS, Keys.SHIFT + Keys.ARROW_RIGHT + Keys.NULL, Keys.ARROW_RIGHT)
    page.until("return location.hash === '#at=0,0'")  # nothing moves, and the first arrow chooses


def test_the_wheel_zooms_in_time_about_the_pointer(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2B3", 2)
    for _ in range(5):
        wheel(page, x, y, -100)
    first, last = seconds_shown(page, timeline.makespan * 1.004 * 0.8025**5, 0.02)
    assert 0 <= first < last <= timeline.makespan
    point(page, x + 1, y)
    assert tip(page).startswith("2B3 ")


def test_keys_zoom_about_the_chosen_action(page, many):
    page.open(many)
    page.find(".viewer [type=search]").send_keys("60F250")
    page.until("return location.hash.includes('at=')")
    page.find(".viewer [type=search]").send_keys(Keys.ESCAPE)
    page.keys(CANVAS, Keys.SHIFT, Keys.ARROW_RIGHT, Keys.NULL, "++++++")  # it is left of the middle
    first, last = page.until(
        "const [from, to] = new URLSearchParams(location.hash.slice(1)).get('t').split(',').map(Number);"
        "return to - from < 30 && [from, to]"
    )
    begin = re.search(r"start ([\d.]+) s", page.text(".selection"))
    assert begin
    assert first <= float(begin[1]) < last


def test_shift_and_wheel_make_rows_taller_and_keep_row_axis_and_tooltip_together(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2B3", 2)
    for _ in range(6):
        wheel(page, x, y, -100, shift=True)
    shown = page.until("return Number((/y=(\\d+)/.exec(location.hash) || [])[1]) > 100 && location.hash")
    assert "t=" not in shown
    row, above = (float(number) for number in re.findall(r"y=(\d+),0,([\d.]+)", shown)[0])
    assert above > 0
    hidden = 4 * row - 4 * row_height(page)
    point(page, x + 1, y)
    assert f"\ndevice {int((y - TOP + above * hidden) // row)}" in tip(page)
    for _ in range(8):
        wheel(page, x, y, 100, shift=True)
    page.until("return !location.hash.includes('y=')")
    point(page, x, y)
    assert tip(page).startswith("2B3 ")


def test_the_wheel_makes_rows_legible_in_all_schedules_and_escape_brings_the_view_back(page, many):
    page.open(many)
    for _ in range(16):
        wheel(page, 500, 200, -100)
    longest = ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=256), COSTS).makespan
    seconds_shown(page, longest * 1.004 * 0.8025**16, 0.02)
    shown = page.run("return location.hash")
    assert int(re.findall(r"y=(\d+)", shown)[0]) >= 12
    each = (page.run(f"return document.querySelector('{CANVAS}').clientHeight") - 20 - AXIS) / 4
    devices = set()
    for number in range(4):
        point(page, 500, TOP + number * each + 14)
        devices |= {re.findall(r"device (\d+)", tip(page))[0]}
    assert len(devices) == 1  # the schedules show the same rows
    page.find(".viewer [type=search]").send_keys("30F200")
    page.until("return location.hash.includes('at=')")
    assert page.run("return location.hash") != shown
    page.find(".viewer [type=search]").send_keys(Keys.ESCAPE)
    page.keys(CANVAS, Keys.ESCAPE)
    page.until(f"return location.hash === '{shown}'")


def test_idle_time_by_cause_has_totals_and_meanings(page, stacked):
    page.open(stacked)
    rows = "return [...document.querySelectorAll('.totals tbody tr')].map((row) => row.textContent)"
    causes = [name for name, *_ in (re.split(r"(?=\d)", row, maxsplit=1) for row in page.run(rows))]
    assert all(name in page.text(".totals summary") for name in causes)
    page.find(".totals summary").click()
    assert "before a device's first action" in page.text(".totals table")


def test_two_fingers_zoom_and_a_tap_chooses(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2B3", 2)
    area = page.run(
        f"const area = document.querySelector('{CANVAS}').getBoundingClientRect(); return [area.left, area.top]"
    )
    touch = "Input.dispatchTouchEvent"
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})

    def fingers(kind, *places):
        points = [{"x": area[0] + px, "y": area[1] + py, "id": number} for number, (px, py) in enumerate(places)]
        page.browser.execute_cdp_cmd(touch, {"type": kind, "touchPoints": points})

    fingers("touchStart", (x, y))
    fingers("touchEnd")
    assert page.until("return document.querySelector('.selection').textContent").startswith("2B3 ")
    assert not page.run(SHOWN)  # a tip would cover the chart
    for at, shown in ((page.find(CANVAS).size["width"] - RIGHT - 9, "block"), (x, "none")):  # idle time, an action
        fingers("touchStart", (at, y))
        fingers("touchEnd")
        page.until("return getComputedStyle(document.querySelector('.time')).display === arguments[0]", shown)
    fingers("touchStart", (x - 50, y), (x + 50, y))
    for apart in (60, 80, 100):
        fingers("touchMove", (x - apart, y), (x + apart, y))
    fingers("touchEnd")
    first, last = seconds_shown(page, timeline.makespan * 1.004 / 2, 0.05)
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    assert 0 <= first < last <= timeline.makespan


def seconds_shown(page, wanted, within):
    """The part of the time that is shown, once it is `wanted` seconds long."""
    return page.until(
        "const part = new URLSearchParams(location.hash.slice(1)).get('t');"
        "if (!part) return false; const [from, to] = part.split(',').map(Number);"
        "return Math.abs((to - from) / arguments[0] - 1) < arguments[1] && [from, to]", wanted, within,
    )  # fmt: skip


def colours(page):
    """How many pixels of the canvas have each colour."""
    red, green, blue = pixels_of(page).astype(int).reshape(-1, 3).T
    found, counts = np.unique((red << 16) + (green << 8) + blue, return_counts=True)
    return Counter({f"#{colour:06x}": count for colour, count in zip(found.tolist(), counts.tolist(), strict=True)})


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Schedules of 64 devices and 256 microbatches, four of them."""
    path = tmp_path_factory.mktemp("viewer") / "many.html"
    runs = [ppsim.simulate(ppsim.build(name, devices=64, microbatches=256), COSTS) for name in FOUR]
    return written(path, *runs)


def test_a_pixel_of_narrow_actions_tells_the_share_of_each_kind(page, many):
    page.open(many)
    named = page.run("return [...document.querySelectorAll('.legend > *')].map((one) => one.textContent)")
    assert "narrow actions mix their colours" in named
    point(page, LEFT + 500, TOP + 60)
    lines = tip(page).split("\n")
    assert re.fullmatch(r"devices? \d+(–\d+)?", lines[0])
    assert lines[1].startswith("mean of ")
    shares = {name: float(share.split()[0]) / 100 for name, share in (line.split(": ") for line in lines[2:])}
    fills = {"F forward": LIGHT.kinds[Kind.F], "B backward": LIGHT.kinds[Kind.B], "idle": LIGHT.idle}
    assert sum(shares.values()) == pytest.approx(1, abs=0.002)
    mean = np.sum([share * light_of(fills[name]) for name, share in shares.items()], axis=0)
    top = page.run(f"return document.querySelector('{CANVAS}').getBoundingClientRect().y")
    seen = pixels_of(page)[int(int(top + TOP + 60) - top), LEFT + 500].astype(float)  # a mouse is at a whole pixel
    assert np.abs(seen - from_linear(mean)).max() <= 2  # the words are of its colour


def means(boxes, columns):
    """The colours (devices, columns, 3) of low rows, as of still charts: means over periods where actions mix."""
    first, last = bins(columns, footprint(boxes, columns.per_second), boxes.timeline.makespan)
    inside = shares(np.zeros(1), np.array([boxes.timeline.makespan]), first, last)[:, None]
    idle = light_of(LIGHT.idle)
    light = np.stack([inside * idle + (1 - inside) * light_of(LIGHT.paper)] * 64)
    for half, device in product(range(2), range(64)):
        own = replace(boxes, kind=boxes.kinds_of_parts(half))
        parts = kind_shares(own, device, *windows(boxes, device, columns))
        for kind, part in zip(own.kinds, parts, strict=True):
            light[device] += part[:, None] * (light_of(LIGHT.kinds[Kind(kind)]) - idle) / 2
    return from_linear(light)


@pytest.mark.parametrize(
    ("name", "microbatches", "costs"),
    [("zb-h1", 256, COSTS), ("bpipe", 256, COSTS), ("dualpipe", 640, ppsim.Costs(overlap=2.5))],
)  # under two pixels, from which on single actions appear by degrees
def test_the_page_draws_means_of_the_time_around_each_column(page, tmp_path, name, microbatches, costs):
    timeline = ppsim.simulate(ppsim.build(name, devices=64, microbatches=microbatches), costs)
    path = tmp_path / "one.html"
    page.open(written(path, timeline, shown=()))
    ratio, wide, tall = page.run(
        f"const c = document.querySelector('{CANVAS}'); return [devicePixelRatio, c.clientWidth, c.clientHeight]"
    )
    assert ratio == 1
    cols, rows = wide - LEFT - RIGHT, min(64 * ROW, tall - 20 - AXIS - 22 - 8)
    seen = pixels_of(page)[TOP : TOP + round(rows), LEFT : LEFT + cols]
    row = rows / 64
    boxes = make_boxes(timeline).in_rows(row)
    assert boxes.plain
    expected = means(boxes, PixelColumns(0.0, timeline.makespan * 1.004, cols))
    names = [(area.top + area.bottom) / 2 * row for area in areas(boxes)]
    middles = [int((device + 0.5) * row) for device in range(4, 60, 2)]  # of rows, away from gaps
    lines = [y for y in middles if all(abs(y - name) > 8 + row for name in names)]
    assert len(lines) > 6
    inside = slice(3, int(cols / 1.004) - 6)
    devices = [int(y // row) for y in lines]
    assert np.abs(seen[lines, inside].astype(int) - expected[devices, inside]).max() <= 2


def test_single_actions_appear_by_degrees_while_one_zooms_in(page, tmp_path):
    timeline = ppsim.simulate(ppsim.build("zb-v", devices=16, microbatches=256), ppsim.Costs())
    address = written(tmp_path / "one.html", timeline, shown=())
    page.open(address)
    cols = page.run(f"return document.querySelector('{CANVAS}').clientWidth") - LEFT - RIGHT
    seen = []
    for wide in (1.4, 2.3, 2.6, 2.9):  # pixels of an action of half a second
        page.open(f"{address}#t=100,{100 + cols * 0.5 / wide}")
        seen.append(np.ptp(pixels_of(page)[TOP + 3, LEFT + 400 : LEFT + 600].astype(int), axis=0).max())
    assert seen[0] <= 4
    assert all(before + 20 < after for before, after in pairwise(seen))


def test_lanes_show_in_rows_of_twelve_pixels_and_the_legend_names_what_lower_rows_leave_out(page, tmp_path):
    path = tmp_path / "one.html"
    path.write_text(
        page_of(ppsim.simulate(ppsim.build("bpipe", devices=64, microbatches=128), COSTS)), encoding="utf-8"
    )
    page.open(path.as_uri())
    page.keys("body", "t")
    assert page.text(".selection") == ""  # once is enough
    wanted = "rows too low for reloads, offloads: .*boxes too small for transfers: double click"
    assert re.search(wanted, page.text(".legend"))
    for _ in range(10):
        wheel(page, 500, 200, -100, shift=True)
    page.until("return !document.querySelector('.legend').textContent.includes('too low')")
    assert "return of an eviction" in page.text(".legend")
    assert "boxes too small for transfers" in page.text(".legend")
    for _ in range(8):
        wheel(page, 500, 200, -100)
    page.until("return document.querySelector('.legend').textContent.includes('transfer; of a backward')")


@pytest.mark.parametrize("name", ["llama-3-70b-64xh100", "deepseek-v3-2048xh800"])
def test_costs_memory_over_the_limit_marks_and_short_spans_are_as_in_still_charts(page, tmp_path, name):
    timeline = ppsim.load_config(CONFIGS / f"{name}.yaml").simulate()
    boxes, path = make_boxes(timeline), tmp_path / "one.html"
    page.open(written(path, timeline, shown=("memory",)))
    assert costs_text([boxes]) in page.text("#measures")
    is_marked = name.startswith("deepseek")  # wide boxes of two directions, and peaks over the limit
    assert ("other direction" in page.text(".legend"), "later stage" in page.text(".legend")) == (is_marked, False)
    assert "usable 76.4 of 84.9 GB" in page.text(".legend")
    assert ("tight" in texts_drawn(page)) == is_marked
    seen = pixels_of(page).astype(float)
    colours = {"fill": channels(LIGHT.paper) + 0.2 * (channels(LIGHT.limit) - channels(LIGHT.paper))}
    colours |= {"limit": channels(LIGHT.limit), "reductions": channels(LIGHT.lanes["reductions"])}
    found = {name: np.count_nonzero(np.abs(seen - one).max(axis=2) <= 2) for name, one in colours.items()}
    dashes = 2 / 3 * seen.shape[1]
    assert (found["limit"] > 1.2 * dashes) == is_marked  # a line over the limit, and no fill
    assert found["fill"] < 40 < found["reductions"]


def test_a_device_over_its_own_limit_is_named(page, tmp_path):
    limits = {"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}, "memory_limit": [2, 4, 4, 4]}
    page.open(written(tmp_path / "one.html", *ppsim.compare(limits, ["1f1b"]).timelines))
    assert {"4 of 2", "over"} <= set(texts_drawn(page))
    assert "limit 2 act." in page.text(".legend")
    limits["schedule"]["microbatches"], limits["memory_limit"] = 16, 4
    for names, is_cut in ((["1f1b", "gpipe"], True), (["gpipe"], False)):  # so that what fits can be read
        page.open(written(tmp_path / "one.html", *ppsim.compare(limits, names).timelines))
        texts = texts_drawn(page)
        assert ("↑" in texts, "peak of 4 act." in texts, "16 of 4" in texts) == (is_cut, is_cut, not is_cut)  # once


def test_limit_lines_have_their_full_colour_and_pressed_views_a_line_between_them(page, tmp_path):
    path = tmp_path / "limit.html"
    run = ppsim.load_config(CONFIGS / "llama-3-8b-8xh100.yaml").simulate()
    page.open(written(path, run, run))
    dashes = [int((np.abs(row - channels(LIGHT.limit)).max(axis=1) == 0).sum()) for row in pixels_of(page)]
    assert sum(count > 400 for count in dashes) == 2
    colours_of = "const { borderLeftColor, backgroundColor } = getComputedStyle(document.querySelector(arguments[0]))"
    edge, ground = page.run(f"{colours_of}; return [borderLeftColor, backgroundColor]", "[data-name=ledger]")
    assert edge != ground


def test_all_slowest_devices_are_named(page, tmp_path):
    path = tmp_path / "one.html"
    config = ppsim.load_config(CONFIGS / "deepseek-v3-2048xh800.yaml").changed({"schedule.microbatches": 136})
    page.open(written(path, config.simulate()))
    assert re.search("▸ device 0 computes 3 % longer .*; device 15 as long$", page.text(".legend .slow"))


def texts_drawn(page, what="text"):
    """The texts of the canvas, or other properties of them, in the order in which they are drawn."""
    return page.browser.execute_async_script(
        "const seen = [], { prototype } = CanvasRenderingContext2D, own = prototype.fillText;"
        f"prototype.fillText = function (text, x) {{ seen.push({what}); own.apply(this, arguments); }};"
        "dispatchEvent(new Event('resize'));"
        "requestAnimationFrame(() => requestAnimationFrame(() => { prototype.fillText = own; arguments[0](seen); }))"
    )


def test_a_name_describes_the_place_on_which_it_stands_and_is_not_repeated(page, tmp_path, sized):
    sized(1150, 900)
    path = tmp_path / "four.html"
    runs = [ppsim.simulate(ppsim.build(name, devices=64, microbatches=128), COSTS) for name in FOUR]
    page.open(written(path, *runs))
    texts = texts_drawn(page)
    assert texts.count("F + I + W") > 2  # both areas of zb-v
    assert texts.count("F + idle") == 1  # dualpipe's, whose gaps change its tone; no mean of forwards with one gap
    page.open(written(path, ppsim.simulate(ppsim.build("hanayo", devices=8, microbatches=128))))
    assert 0 < texts_drawn(page).count("B") <= 5  # of 16 equal areas


def test_microbatches_have_one_size_in_a_picture_and_a_kind_has_numbers_on_all_devices_alike(page, tmp_path, sized):
    sized(1440, 900)
    path = tmp_path / "numbers.html"
    runs = [ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), ppsim.Costs(latency=0.3)) for name in FOUR]
    page.open(written(path, *runs))
    drawn = texts_drawn(page, "[text, this.font.split('px')[0], this.fillStyle, this.textAlign]")
    numbers = [(size, colour) for text, size, colour, align in drawn if text in "01234567" and align == "center"]
    assert len(numbers) > 4 * 64
    assert len({size for size, colour in numbers if colour != LIGHT.quiet}) == 1
    narrow = ppsim.Costs(forward=[1, 1, 0.6, 1], backward=2)  # on device 2, two digits do not fit into F
    page.open(written(path, ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=18), narrow)))
    counts = Counter(texts_drawn(page))
    assert {counts[str(number)] for number in range(11, 18)} == {4}  # B alone


def test_letters_of_kinds_are_in_all_charts_of_a_grey_page_or_in_none(page, tmp_path, sized):
    sized(1150, 900)
    path = tmp_path / "grey.html"
    runs = [ppsim.simulate(ppsim.build(name, devices=4, microbatches=8)) for name in ("1f1b", "zb-h1", "zb-v")]
    for count, is_lettered in ((2, True), (3, False)):  # zb-v's boxes are too narrow for them
        page.open(written(path, *runs[:count], theme="grey"))
        texts = set(texts_drawn(page))
        assert ({"F7", "B7", "W7"} <= texts, "7" in texts) == (is_lettered, not is_lettered)


def test_a_tip_below_the_last_row_hides_no_numbers_of_the_next_schedule(page, stacked):
    page.open(stacked)
    point(page, LEFT + 400, TOP + 3.5 * row_height(page))
    box = page.find(".tip").rect
    assert box["y"] + box["height"] < page.find(CANVAS).rect["y"] + TOP + 3.5 * row_height(page)  # above the pointer


def test_the_meanings_of_causes_are_open_where_the_window_has_space(page, chart, sized):
    for tall, is_open in ((1080, True), (720, False)):
        sized(1920, tall)
        page.open(chart)
        assert page.run("return document.querySelector('.totals').open") == is_open
        assert row_height(page) == ROW or not is_open  # takes nothing from the rows
        assert page.run("return document.documentElement.scrollHeight <= innerHeight")


def test_a_range_cuts_no_name(page, tmp_path, sized):
    sized(1440, 900)
    path = tmp_path / "range.html"
    page.open(written(path, ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=256))))
    place = "[text, x, x + this.measureText(text).width / 2]"
    (middle,) = [x for text, x, _ in texts_drawn(page, place) if text == "F + B"]
    seconds = (middle - LEFT) / (1440 - LEFT - RIGHT) * 957 * 1.004
    page.run(f"location.hash = 'range={seconds - 100},{seconds}'")
    page.until("return !document.querySelector('.range').hidden")
    ((x, edge),) = [(x, edge) for text, x, edge in texts_drawn(page, place) if text == "F + B"]
    assert abs(x - middle) > edge - x


def test_deep_zoom_draws_no_line_of_the_grid_over_rows(page, stacked):
    page.open(stacked + "#t=2.50000,2.50010&on=")  # in a forward
    row = pixels_of(page)[TOP + 20, LEFT + 2 : -RIGHT - 2]
    assert len(np.unique(row, axis=0)) == 1


def test_the_parts_of_a_gap_have_the_precision_of_its_length(page, tmp_path):
    timeline = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), ppsim.Costs(latency=0.0123456))
    path = tmp_path / "one.html"
    page.open(written(path, timeline))
    point(page, LEFT + 250, TOP + row_height(page) / 2)
    assert "length 6.07 s, end 10.07 s\n6.06 s dependency + 0.01 s transfer\n" in tip(page)


def test_transfers_pass_behind_the_actions_of_other_devices(page, tmp_path):
    timeline = ppsim.simulate(ppsim.build("interleaved-1f1b", devices=4, microbatches=8), COSTS)
    path = tmp_path / "one.html"
    page.open(written(path, timeline) + "#on=memory,transfers")
    lined = pixels_of(page)
    page.run("CanvasRenderingContext2D.prototype.stroke = () => {}; dispatchEvent(new Event('resize'))")
    page.run(FRAMES)
    ground = pixels_of(page)
    row, wide = row_height(page), page.find(CANVAS).size["width"] - LEFT - RIGHT
    for device, start, end in zip(timeline.schedule.device.tolist(), timeline.start, timeline.end, strict=True):
        left, right = (LEFT + time / (timeline.makespan * 1.004) * wide for time in (start, end))
        inside = (
            slice(int(TOP + device * row) + 3, int(TOP + (device + 1) * row) - 14),
            slice(int(left) + 2, int(right) - 2),
        )
        assert np.array_equal(ground[inside], lined[inside])
    gap = slice(int(TOP + row) - 11, int(TOP + row) - 2)
    assert not np.array_equal(ground[gap], lined[gap])


def test_every_schedule_has_its_transfers_or_is_named_and_none_crosses_a_row(page, tmp_path, sized):
    sized(1600, 1080)
    names, lines = ("interleaved-1f1b", "zb-v"), "this.lineWidth === 1 && [this.last, y]"
    runs = [ppsim.simulate(ppsim.build(name, devices=16, microbatches=32), COSTS) for name in names]
    page.open(written(tmp_path / "one.html", *runs) + "#on=transfers")
    assert "transfer that a device waits for; of a backward: dashed" in page.text(".legend")
    page.run(
        "const { prototype } = CanvasRenderingContext2D, { moveTo, lineTo } = prototype; window.ends = [];"
        "prototype.moveTo = function (x, y) { this.last = y; moveTo.call(this, x, y); };"
        f"prototype.lineTo = function (x, y) {{ ends.push({lines}); lineTo.call(this, x, y); }};"
        "dispatchEvent(new Event('resize'))"
    )
    ends = np.array([one for one in page.run(FRAMES) and page.run("return ends") if one])
    assert np.abs(np.diff(ends)).max() < 10  # the space between two rows
    assert min(np.sum(ends < 500), np.sum(ends > 500)) > 200  # in both charts
    sized(1280, 900)
    runs = [ppsim.simulate(ppsim.build(name, devices=8, microbatches=64), COSTS) for name in ("1f1b", "zb-v")]
    page.open(written(tmp_path / "one.html", *runs) + "#on=memory,transfers")
    assert "boxes of zb-v too small for transfers" in page.text(".legend")


def test_gaps_between_boxes_do_not_beat_with_the_pixels(page, tmp_path, sized):
    sized(760, 844)
    run = ppsim.simulate(ppsim.build("gpipe", devices=4, microbatches=60), ppsim.Costs(backward=1.0))
    page.open(written(tmp_path / "one.html", run, shown=()))
    fill, row = light_of(LIGHT.kinds[Kind.F])[0], pixels_of(page)[TOP + 9]
    wide = (len(row) - LEFT - RIGHT) / 1.004 / run.makespan
    seen = np.array([light_of(f"#{r:02x}{g:02x}{b:02x}")[0] for r, g, b in row[LEFT:].tolist()])
    begins = [round(at * wide) for at in range(1, 59)]
    added = [(seen[x - 2 : x + 2] - fill).sum() for x in begins]
    assert np.std(added) < 0.05 * np.mean(added)


@pytest.mark.parametrize(("wide", "tall"), [(1440, 900), (1920, 1080), (390, 844)])
@pytest.mark.parametrize("which", ["chart", "many"])
def test_rows_numbers_and_axis_lie_inside_the_window(page, chart, many, wide, tall, which):
    metrics = {"width": wide, "height": tall, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open({"chart": chart, "many": many}[which])
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert (
            page.run("const pane = document.querySelector('.pane'); return pane.scrollHeight - pane.clientHeight") <= 1
        )
        bottom = page.run(f"return document.querySelector('{CANVAS}').getBoundingClientRect().bottom")
        assert bottom <= tall
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_range_is_selected_along_the_axis_and_has_its_numbers(page, stacked):
    page.open(stacked)
    canvas = page.find(CANVAS)
    axis = page.find(".status").rect["y"] - canvas.rect["y"] - 20  # the legend is directly below it
    move = ActionChains(page.browser).move_to_element_with_offset(canvas, 0, axis - canvas.size["height"] / 2)
    move.click_and_hold().move_by_offset(200, 0).release().perform()
    text = page.until("const panel = document.querySelector('.range'); return !panel.hidden && panel.innerText")
    assert re.match(r"\d+\.\d – \d+\.\d s\t", text)
    assert "1f1b" in text
    assert "zb-h1" in text
    assert page.until("return location.hash.includes('range=')")
    panel, table = (page.find(one).rect for one in (".range", ".devices"))
    assert panel["y"] + panel["height"] <= table["y"] + 1
    page.find(".range button").click()
    page.until("return location.hash.includes('t=')")
    page.keys(CANVAS, Keys.ESCAPE)
    assert page.until("return document.querySelector('.range').hidden")


def test_keys_alone_select_what_is_seen_or_from_action_to_action(page, stacked):
    page.open(stacked)
    title = "return document.querySelector('.range b')?.textContent"
    page.keys(CANVAS, "r")
    assert page.until(title).startswith("Range 0.0 – ")
    assert page.text(".selection").startswith("range 0.0 – ")
    page.keys(CANVAS, Keys.ESCAPE, Keys.ENTER, Keys.ARROW_RIGHT, "r", Keys.ARROW_RIGHT, "r")
    assert page.until(title) == "Range 1.0 – 3.0 s"


def test_busy_and_idle_time_of_a_range_have_bars_of_one_scale_each(page, stacked, sized):
    bars = "return [...document.querySelectorAll('.range .bar')].map((bar) => [...bar.children].map((one) =>"
    wide = "one.getBoundingClientRect().width / one.parentElement.getBoundingClientRect().width"
    for size in (1280, 600):  # idle bars below the busy ones have their scale
        sized(size, 900)
        page.open(stacked + "#range=5,12")
        parts = page.until(f"{bars} [one.title, {wide}]))")
        assert len(parts) == 4
        sizes = [[(float(title.split()[-2]), 100 * wide) for title, wide in bar] for bar in parts]
        longest = max(sum(size for size, _ in bar) for bar in sizes[1::2]) if size == 1280 else 100
        for bar, all_of in zip(sizes, [100, longest] * 2, strict=True):
            assert all(100 * size / all_of == pytest.approx(wide, abs=0.7) for size, wide in bar)


def test_a_double_click_goes_from_mixed_colours_to_single_actions_and_back(page, tmp_path):
    many = ppsim.simulate(ppsim.build("1f1b", devices=32, microbatches=256), COSTS)
    path = tmp_path / "many.html"
    page.open(written(path, many))
    twice = "const { x, y, width } = arguments[0].getBoundingClientRect(); arguments[0].dispatchEvent(new MouseEvent("
    twice += "'dblclick', { clientX: x + width / 2, clientY: y + 100 }))"
    page.run(twice, page.find(CANVAS))
    mixed = "document.querySelector('.legend').textContent.includes('mix their colours')"
    page.until(f"return location.hash.includes('t=') && !{mixed}")
    page.run(twice, page.find(CANVAS))
    page.until(f"return !location.hash.includes('t=') && {mixed}")
    path.write_text(page_of(ppsim.simulate(ppsim.build("1f1b", devices=128, microbatches=16))), encoding="utf-8")
    page.open(path.as_uri())  # rows are lower than boxes are wide
    page.keys("body", "t")
    assert "double click" in page.text(".legend")
    page.run(twice, page.find(CANVAS))
    page.until("return document.querySelector('.legend').textContent.includes('transfer; of a backward')")


def test_steps_along_the_path_make_rows_legible_and_the_view_comes_back(page, many):
    page.open(many)
    page.keys("body", "c", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.until("return location.hash.includes('t=') && /y=1[2-6]/.test(location.hash)")
    numbers = [y for text, y in texts_drawn(page, "[text, arguments[2]]") if text.isdigit()]
    rows = sorted(y for y, count in Counter(numbers).items() if count > 20)
    row = float(re.search("y=([0-9.]+)", page.run("return location.hash"))[1])
    places = np.array([one for one in rows if one < rows[0] + 7.5 * row]) / row
    assert np.diff(places) == pytest.approx(1, abs=0.2)  # no row is cut, and the path covers no numbers
    page.keys("body", "c")
    page.until("return !/[ty]=/.test(location.hash)")
    page.keys("body", "/")
    page.keys(".viewer input[type=search]", "40F100", Keys.ENTER)  # boxes of a few pixels are too narrow for numbers
    assert texts_drawn(page).count("100") > 0


def test_the_current_step_of_the_path_differs_from_the_path_also_on_blue(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2F0", 2)
    edge = round(x - 0.5 / (timeline.makespan * 1.004) * (page.find(CANVAS).size["width"] - LEFT - RIGHT))
    lines = (slice(round(y) - 8, round(y) - 4), slice(edge - 8, edge + 8))
    page.keys("body", "c", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "action 3 of" in page.text(".selection")
    page.run(FRAMES)
    seen = pixels_of(page)[lines].astype(int).sum(axis=2)
    dark = np.flatnonzero(seen[0] < 200)
    assert len(dark) >= 2
    assert (seen[:, : dark[0]] >= 3 * 250).any()  # light on both sides of the frame
    assert (seen[:, dark[-1] + 1 :] >= 3 * 250).any()


def test_a_path_moves_no_number(page, tmp_path):
    path = tmp_path / "slots.html"
    run = ppsim.load_config(CONFIGS / "deepseek-v3-2048xh800.yaml").simulate()  # halves of slots with marks
    path.write_text(page_of(run), encoding="utf-8")
    heights = []
    for view in ("", "critical"):
        page.open(path.as_uri() + f"#t=0,2.2&on=memory,{view}")
        heights.append({tuple(one) for one in texts_drawn(page, "[text, Math.round(x), arguments[2]]")})
    assert len(heights[0]) > 50
    assert heights[0] == heights[1]  # it is below the row, beside the marks


def test_numbers_touch_no_mark_in_low_rows(page, tmp_path, sized):
    names = ("interleaved-1f1b", "dualpipe", "interleaved-1f1b", "dualpipe")
    runs = [ppsim.simulate(ppsim.build(name, devices=8, microbatches=16)) for name in names]
    page.open(written(tmp_path / "marks.html", *runs))
    shades = "const [x, y] = arguments, { data } = document.querySelector('canvas').getContext('2d').getImageData("
    shades += "x - 3, y, 7, 1); return new Set(new Uint32Array(data.buffer)).size"
    sizes = set()
    for tall in range(740, 900, 20):
        sized(1440, tall)
        page.until(FRAMES)
        drawn = texts_drawn(page, "arguments[3] && x > 60 && x < 1330 && [Math.round(x), arguments[2]]")
        baselines = [*filter(None, drawn)]  # of what has a width at most
        sizes.add(len(baselines) > 0)
        for x, y in baselines[::7]:
            assert [page.run(shades, x, line) for line in (y, y - 8)] == [1, 1], (tall, x, y)  # below and above digits
    assert True in sizes


def test_keys_hide_the_tip_and_step_along_the_path_of_the_schedule_below_the_pointer(page, stacked):
    page.open(stacked)
    point(page, LEFT + 20, page.find(CANVAS).size["height"] - 200)
    assert tip(page)
    page.keys("body", "c", Keys.ARROW_RIGHT)
    assert page.text(".selection").startswith("critical path of zb-h1, action 1 of ")
    assert page.run(SHOWN) == ""
    page.keys("body", Keys.ESCAPE, "+", "+", "+", Keys.ARROW_RIGHT)
    name = page.until("return document.querySelector('.selection').textContent")
    assert int(re.findall(r"action (\d+) of", name)[0]) > 1  # the first in sight


def test_a_line_through_all_schedules_shows_the_time_at_the_pointer(page, stacked):
    page.open(stacked)
    size = page.find(CANVAS).size
    line = "const { display, left, height } = document.querySelector('.time').style; return [display, left, height]"
    for y in (TOP + 10, size["height"] - 200, size["height"] - 60):  # an action, memory, the axis' edge
        point(page, 538, y)
        display, left, height = page.run(line)
        assert (display, abs(float(left[:-2]) - 538) <= 4) == ("block", True)
        assert float(height[:-2]) > 0.6 * size["height"]
        found = texts_drawn(page)
        found = found[len(found) - found[::-1].index("0") :]  # of the axis, after its first tick
        assert [text for text in found if re.fullmatch(r"1[45]\.\d s", text)]  # on the axis,
        assert ("10" in found, "15" in found) == (True, False)  # where it covers no other number
    point(page, 20, TOP + 10)
    assert page.run(line)[0] == "none"


def test_the_line_of_numbers_tells_idle_time_by_cause_and_the_axis_where_a_drag_selects(page, stacked):
    page.open(stacked)
    point(page, 120, 30)
    assert tip(page) == "step\ntime of one training step"
    point(page, 60, 30)
    assert tip(page).startswith("1f1b: idle 30.6 % of all devices' time\nfill: ")
    shares = [float(share) for share in re.findall(r": (\S+) %", tip(page))]
    assert sum(shares) == pytest.approx(30.6, abs=0.2)
    point(page, 500, page.find(".status").rect["y"] - page.find(CANVAS).rect["y"] - 20)
    assert page.find(CANVAS).value_of_css_property("cursor") == "col-resize"


def test_a_phone_has_its_tools_in_one_line_and_the_chart_below_the_verdict(page, timeline, tmp_path, sized):
    sized(390, 844)
    path = tmp_path / "phone.html"
    page.open(written(path, timeline, timeline, lead="both are equal · and their interval"))
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    verdict, tools, chart, rest = (page.run(top, one) for one in ("#head span", ".tools", CANVAS, "#head span + span"))
    assert verdict < tools < chart < rest
    assert page.find(".tools").rect["height"] < 60
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_base_changes_and_time_plays(page, stacked):
    page.open(stacked)
    page.keys(CANVAS, "b")
    assert page.until("return location.hash.includes('base=1')")
    page.keys(CANVAS, ".")
    told = "return document.querySelector('.selection').textContent"
    assert page.until(told) == "at 0.0 s, busy: 1f1b 1 of 4 · zb-h1 1 of 4"
    page.keys(CANVAS, ".")
    page.until(f"{told}.startsWith('at 1.0 s')")
    page.until(FRAMES)
    before = colours(page)
    page.keys(CANVAS, Keys.ESCAPE)
    page.until(FRAMES)
    assert (whole := colours(page)[LIGHT.kinds[Kind.F]]) > 2 * before[LIGHT.kinds[Kind.F]]
    page.keys(CANVAS, ".")
    page.keys(".viewer input[type=search]", "3F7")  # what it finds is not pale
    page.until(FRAMES)
    assert colours(page)[LIGHT.kinds[Kind.F]] > 0.9 * whole


def test_a_measured_page_picks_an_iteration_and_marks_stragglers_stalls_and_differences(page, timeline, tmp_path):
    slower = ppsim.simulate(timeline.schedule, ppsim.Costs(forward=1.0, backward=[2.5, 2.5, 2.5, 6.0], latency=0.1))
    stragglers = {f"3B{number}": "6 s, usually 2 s: a straggler" for number in (0, 1, 2)}
    marks = Marks({}, stragglers, {"0B0": "waits 13 s, usually 6.6 s: a stall"})
    steps = Iterations([4, 5, 6], [33.6, 55.6, 40.0], 0, {0: (timeline, Marks()), 1: (slower, marks)})
    chart = tmp_path / "measured.html"
    options = {"titles": ["measured", "simulated"], "shown": ("differences",), "words": "<div><table></table></div>"}
    chart.write_text(page_of(timeline, timeline, iterations=steps, **options), encoding="utf-8")
    page.open(chart.as_uri())
    assert page.run("return document.querySelector('.words table').parentElement.tabIndex") == 0  # keys scroll it
    assert page.run("return document.querySelector('.words').open")
    bars = page.run("return [...document.querySelectorAll('.bars button')].map((one) => [one.title, one.disabled])")
    assert bars == [
        ["step 4: 33.6 s, the shortest of 3", False], ["step 5: 55.6 s, the longest of 3", False],
        ["step 6: 40.0 s, the median of 3", True],
    ]  # fmt: skip
    legend = "return document.querySelector('.legend').textContent"
    assert not re.search("longer than simulated|straggler", page.run(legend))
    assert LIGHT.longer not in colours(page)  # both charts are equal
    page.find(CANVAS).send_keys(">")
    assert page.text(".devices:not(.words) summary") == "Devices, step 5"
    page.until_true(lambda: "the longest in view:longer than simulatedstragglerstall" in page.run(legend), "marks")
    page.until(FRAMES)
    assert colours(page)[LIGHT.longer] > 50  # bars in their boxes
    assert colours(page)[LIGHT.limit] > 50  # frames and brackets
    page.keys(CANVAS, "d")
    page.until_true(lambda: LIGHT.longer not in colours(page), "no marks")
    assert page.find(".steps").text == "step 5: 55.6 s, the longest of 3"
    point(page, *[LEFT + 60, TOP + 10])
    assert "simulated: " in tip(page)


def test_a_drag_moves_and_with_shift_selects_and_the_thumb_shows_which_part(page, chart, timeline):
    page.open(chart)
    for _ in range(2):
        page.find("button[aria-label='Zoom in on time']").click()
    first, last = seconds_shown(page, timeline.makespan * 1.004 * 0.36, 0.01)
    x, y = place(page, timeline, "2B3", 2)
    point(page, x, y)
    ActionChains(page.browser).click_and_hold().move_by_offset(-200, 0).release().perform()
    wide = page.find(CANVAS).size["width"] - LEFT - RIGHT
    moved = first + 200 / wide * (last - first)
    page.until(
        f"const [from] = location.hash.split('t=')[1].split(',').map(Number); return Math.abs(from - {moved}) < 0.1"
    )
    assert page.run("return document.querySelector('.range').hidden")
    page.run(FRAMES)
    thumb = page.run(
        f"const canvas = document.querySelector('{CANVAS}'), context = canvas.getContext('2d');"
        "for (let y = canvas.height - 1; y > canvas.height / 2; y--) {"
        "  const row = context.getImageData(arguments[0], y, arguments[1], 1).data, found = [];"
        "  for (let x = 0; x < arguments[1]; x++) if (row[4 * x] < 40 && row[4 * x + 2] < 60) found.push(x);"
        "  if (found.length > 50 && found.at(-1) - found[0] === found.length - 1) return [found[0], found.length]; }",
        LEFT, wide,
    )  # fmt: skip
    whole = timeline.makespan * 1.004
    assert thumb == [pytest.approx(moved / whole * wide, abs=3), pytest.approx((last - first) / whole * wide, abs=3)]
    chain = ActionChains(page.browser).key_down(Keys.SHIFT).click_and_hold().move_by_offset(150, 0).release()
    chain.key_up(Keys.SHIFT).perform()
    assert page.until("const panel = document.querySelector('.range'); return !panel.hidden && panel.innerText")
    page.until(FRAMES)
    shades = colours(page)
    faded = [round(255 - 0.38 * (255 - int(LIGHT.kinds[Kind.F][at : at + 2], 16))) for at in (1, 3, 5)]
    near = [c for c in shades if all(abs(int(c[1 + 2 * n : 3 + 2 * n], 16) - faded[n]) <= 1 for n in range(3))]
    assert sum(shades[colour] for colour in near) > 100  # what is outside of the range is at 38 %


def test_space_plays_and_stops_and_comma_steps_back(page, chart):
    page.open(chart)
    told = (
        "const [, time] = /at ([0-9.]+) s/.exec(document.querySelector('.selection').textContent); return Number(time)"
    )

    def after_half_a_second():
        page.keys(CANVAS, " ")
        page.until("return getComputedStyle(document.querySelector('.selection'), '::after').content"
                   " === '\"Space: stop\"' || /at/.test(document.querySelector('.selection').textContent)")  # fmt: skip
        page.keys(CANVAS, " ")
        return (time := page.run(told)) > 0.5 and time

    stopped = page.until_true(after_half_a_second, "time moves")
    page.keys(CANVAS, ",", ",")
    assert page.run(told) < stopped


@pytest.mark.parametrize("theme", ["light", "dark", "grey"])
def test_a_page_has_the_theme_of_its_address_and_a_key_makes_it_grey(page, chart, theme):
    page.open(f"{chart}#theme={theme}")
    ground, kind = "return getComputedStyle(document.body).backgroundColor", THEMES[theme].kinds[Kind.F]
    paper = ", ".join(str(int(THEMES[theme].paper[at : at + 2], 16)) for at in (1, 3, 5))
    page.until(f"{ground} === 'rgb({paper})'")
    assert colours(page)[kind] > 100
    page.keys("canvas", "g")
    page.until("return location.hash.includes('theme=grey')" if theme != "grey" else "return !location.hash")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_their_own_ground(page, chart, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.open(chart)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    theme = THEMES[scheme]
    found = colours(page)
    assert min(found[theme.idle], found[theme.kinds[Kind.F]]) > 100
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


def test_paper_has_no_outline_of_what_is_below_the_pointer(page, stacked):
    page.open(stacked)
    prints = []
    for x in (10, 500):
        point(page, x, TOP + 10)
        page.run("dispatchEvent(new Event('beforeprint'))")
        prints.append(pixels_of(page))
        page.run("dispatchEvent(new Event('afterprint'))")
    assert (prints[0] == prints[1]).all()


def test_it_prints_on_one_page_of_paper_and_its_tables_on_the_next(page, stacked):
    page.open(stacked)
    paper = base64.b64decode(page.browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 2
    wide, high = (float(side) for side in re.findall(rb"/MediaBox \[0 0 (\S+) (\S+)\]", paper)[0])
    assert wide > high
    assert len(paper) > 20_000  # it holds the picture


def test_one_schedule_of_four_devices_prints_on_one_page_with_its_table(page, chart):
    page.open(chart)
    paper = base64.b64decode(page.browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["", "#on=transfers,critical,memory,ledger&range=5,12&at=0,7"])
def test_axe_finds_no_serious_fault(page, stacked, scheme, state):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.open(stacked + state)
    page.find(".devices summary").click()
    faults = page.serious_faults()
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert faults == []


def test_open_tables_leave_rows_legible_and_the_page_scrolls(page, stacked, sized):
    sized(1440, 700)
    page.open(stacked)
    page.find(".devices summary").click()
    page.until(FRAMES)
    tall = page.run(f"return document.querySelector('{CANVAS}').clientHeight")
    assert tall >= 20 + AXIS + 2 * (22 + 8 + 4 * 24 + 56)  # rows of 24 pixels
    bottom, high = page.run(
        "const end = document.querySelector('.devices').getBoundingClientRect().bottom;"
        "return [end, document.documentElement.scrollHeight]"
    )
    assert bottom <= 700 < high  # what was opened is in sight
    heads = page.run("return [...document.querySelectorAll('.devices caption')].map((one) => one.textContent)")
    assert heads == ["1f1b, times in s", "zb-h1, times in s"]
    assert page.run("return getComputedStyle(document.querySelector('.tables')).overflow") == "visible"  # the page's


def test_the_table_opens_before_the_browser_reports_a_size(page, timeline, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(timeline), encoding="utf-8")
    late = {"source": "window.ResizeObserver = class { observe() {} };"}
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", late)
    page.open(path.as_uri())
    page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert page.run("return document.querySelectorAll('.devices tbody tr').length") == 4


def test_names_of_devices_are_apart_and_every_text_of_the_keys_has_its_space(page, many, tmp_path, sized):
    path = tmp_path / "slow.html"
    slow = ppsim.Costs(forward=[2 if device in (0, 40, 41) else 1 for device in range(64)], backward=2.0)
    runs = [ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=m), slow) for m in range(64, 68)]
    path.write_text(page_of(*runs), encoding="utf-8")
    names = (
        "const seen = [], { prototype } = CanvasRenderingContext2D, own = prototype.fillText;"
        "prototype.fillText = function (text, x, y) {"
        "  if (this.textAlign === 'right' && this.textBaseline === 'middle') seen.push([text, y]);"
        "  own.apply(this, arguments); };"
        f"dispatchEvent(new Event('resize')); {FRAMES.replace('done(1)', '{ prototype.fillText = own; done(seen); }')}"
    )
    for size, every in (((1440, 900), 16), ((390, 844), 32)):
        sized(*size)
        page.open(many)
        usual = page.run(names)
        assert [text for text, _ in usual] == [str(device) for device in range(0, 64, every)] * 4
        assert all(low - high >= 14 for (_, high), (text, low) in pairwise(usual) if text != "0")
        page.open(path.as_uri())
        slowest = page.run(names)
        assert {"▸0", "▸40"} <= {text for text, _ in slowest}
        places = sorted(place for _, place in slowest)
        assert min(low - high for high, low in pairwise(places)) >= 12
    sized(1440, 900)
    page.open(many)
    page.keys(CANVAS, "?")
    cut = (
        "return [...document.querySelectorAll('.keys th')].filter((one) => { const range = document.createRange();"
        "range.selectNodeContents(one); return range.getBoundingClientRect().right > one.getBoundingClientRect().right;"
        "}).map((one) => one.textContent)"
    )
    assert page.run(cut) == []


def test_slices_are_named_and_memory_has_no_half_with_more_digits(page, tmp_path):
    timeline = ppsim.simulate(ppsim.build("seq1f1b", devices=4, microbatches=8, slices=2), COSTS)
    page.open(written(tmp_path / "one.html", timeline))
    assert {"2.5", "1.25", "0.1"} & set(texts_drawn(page)) == {"2.5", "0.1"}
    assert "numbers: microbatch.slice" in page.text(".legend")
    page.keys(".viewer input[type=search]", "0B2.1")
    assert "device 0, stage 0, microbatch 2, slice 1 ·" in page.text(".selection")
    narrow = ppsim.simulate(ppsim.build("seq1f1b", devices=4, microbatches=40, slices=2), COSTS)
    page.open(written(tmp_path / "one.html", narrow))
    assert "0.1" not in texts_drawn(page)
    assert "microbatch.slice" not in page.text(".legend")


def test_all_devices_have_a_line_of_memory_where_rows_are_not_low(page, chart, many, sized):
    for file, are_low in ((chart, False), (many, True)):
        sized(1280, 700)
        page.open(file)
        size = page.find(CANVAS).size
        point(page, size["width"] - 20, size["height"] - AXIS - 12)
        assert ("thin: the others" in tip(page)) != are_low


def test_work_in_idle_time_leaves_less_idle_time_in_numbers_bars_and_table(page, timeline, tmp_path):
    filling = timeline.fill([{"name": "other", "duration": 0.5, "count": "max"}])
    path = tmp_path / "filled.html"
    page.open(written(path, filling.run))
    spans = filling.run.fills
    left = 1 - (spans.end - spans.start).sum() / (4 * timeline.makespan) / timeline.bubble_fraction
    idle = page.run("return [...document.querySelectorAll('.devices tbody tr')].map((row) => row.cells[4].textContent)")
    mean = sum(map(float, idle)) / 4
    assert mean == pytest.approx(left * timeline.bubble_fraction * timeline.makespan, abs=0.01)
    wide = page.find(CANVAS).size["width"]
    point(page, wide - 20, TOP + row_height(page) / 2)
    assert tip(page).startswith(f"device 0: idle {100 * float(idle[0]) / timeline.makespan:.1f} % of the step")
    begin = LEFT + (spans.start[1] + spans.end[1]) / 2 / (timeline.makespan * 1.004) * (wide - LEFT - RIGHT)
    point(page, begin, TOP + (spans.device[1] + 0.5) * row_height(page))
    assert "started after: nothing: it fills idle time" in tip(page)


@pytest.mark.parametrize(
    "lengths", [[5], [1, 4], [9, 10, 40], [9, 10, 80, 99], [10, 14, 20, 27, 35], [17, 22, 24, 25, 215, 334]]
)
def test_the_axis_ends_where_that_of_a_still_chart_does(page, lengths):
    script = (Path(ppsim.__file__).parent / "plots" / "page" / "viewer.js").read_text(encoding="utf-8")
    rule = re.search(r"function shownSeconds.*?\n}\n", script, re.DOTALL)[0]
    expected = shown_length(lengths)
    room = 1.004 if expected == max(lengths) else 1  # for the line at the end of the step
    assert page.run(f"{rule} return shownSeconds(arguments[0])", lengths) == pytest.approx(expected * room)


def test_a_cut_schedule_can_be_seen_up_to_its_end(page, tmp_path):
    fast, slow = (ppsim.simulate(ppsim.build(name, devices=8, microbatches=32), COSTS) for name in ("1f1b", "naive"))
    path = tmp_path / "cut.html"
    path.write_text(page_of(fast, slow), encoding="utf-8")
    seen = f"t={slow.makespan - 20:g},{slow.makespan:g}"
    page.open(f"{path.as_uri()}#{seen}")
    page.keys("body", Keys.ARROW_DOWN)
    page.run(FRAMES)
    assert seen in page.run("return location.hash")


def test_six_schedules_show_how_many_are_in_sight_and_the_names_scroll(page, tmp_path, sized):
    sized(1440, 900)
    runs = [ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=m), COSTS) for m in range(4, 10)]
    path = tmp_path / "six.html"
    page.open(written(path, *runs))
    thumb = f"return document.querySelector('{CANVAS}').getContext('2d').getImageData(arguments[0], arguments[1], 1, 1)"
    wide, tall = page.run(f"const c = document.querySelector('{CANVAS}'); return [c.clientWidth, c.clientHeight]")
    ends = [24, tall - 44]
    assert [page.run(f"{thumb}.data[0]", wide - 3, y) < 60 for y in ends] == [True, False]
    wheel(page, 20, 300, 3000)
    page.until("return location.hash.includes('y=')")
    page.run(FRAMES)
    assert [page.run(f"{thumb}.data[0]", wide - 3, y) < 60 for y in ends] == [False, True]
