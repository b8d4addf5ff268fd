"""The viewer in a real Chromium: it says what it draws, by mouse, wheel, touch and keys, on screen and paper."""

import base64
import re

import pytest
from pages import page_of
from selenium.webdriver import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.keys import Keys

import ppsim

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)
CANVAS = ".viewer canvas"
LEFT, TOP = 78, 4  # pixels of the names at the left and above the first row


@pytest.fixture(scope="module")
def timeline():
    return ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), COSTS)


@pytest.fixture(scope="module")
def chart(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "chart.html"
    path.write_text(page_of(timeline), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def stacked(timeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "stacked.html"
    other = ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=8), COSTS)
    path.write_text(page_of(timeline, other), encoding="utf-8")
    return path.as_uri()


def place(page, timeline, action, device):
    """Pixels within the canvas of the middle of an action of a chart that stands alone and shows memory."""
    wide = page.run(f"return document.querySelector('{CANVAS}').clientWidth") - LEFT - 122
    orders = [label for order in timeline.schedule.orders() for label in order]
    index = orders.index(action)
    middle = (timeline.start[index] + timeline.end[index]) / 2
    return LEFT + middle / timeline.makespan * wide, TOP + (device + 0.5) * 44


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
    return page.until(SHOWN)


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


def test_hover_tells_idle_time_with_what_comes_next(page, chart):
    page.open(chart)
    point(page, LEFT + 20, TOP + 3.5 * 44)
    assert tip(page).startswith(
        "idle\ndevice 3\nstart 0 s, length 3.3 s, end 3.3 s\nthen 3F0, which waited for: its input"
    )


def test_hover_tells_transfers_memory_and_the_ledger_of_a_device(page, chart, timeline):
    page.open(chart + "#on=transfers,memory,ledger")
    point(page, LEFT + 20, TOP + 4 * 44 + 30)
    assert re.match(r"device \d holds \d microbatches through one device share at ", tip(page))
    point(page, page.find(CANVAS).size["width"] - 20, TOP + 20)
    assert tip(page).startswith("device 0: idle 30.6 % of the step\ndependency: ")
    wide = page.find(CANVAS).size["width"] - LEFT - 190
    point(page, LEFT + 1.05 / timeline.makespan * wide, TOP + 44)
    assert tip(page).startswith("0SEND_F0   transfer\nfrom device 0 to device 1\nstart 1 s, length 0.1 s, end 1.1 s")


def test_a_click_follows_what_an_action_waited_for_back_to_the_start(page, chart, timeline):
    page.open(chart)
    point(page, *place(page, timeline, "0B7", 0))
    ActionChains(page.browser).click().perform()
    told = page.until("return document.querySelector('.selection').textContent")
    assert told.startswith("0B7   B full backward · device 0, ")
    steps, worked, moved = re.findall(
        r"back to the start: (\d+) steps, (\S+) s in actions, (\S+) s in transfers", told
    )[0]
    assert float(worked) + float(moved) == pytest.approx(timeline.makespan, rel=1e-4)
    actions = len(timeline.critical_path())
    assert int(steps) == actions + round(float(moved) / 0.1)
    page.keys(CANVAS, Keys.ESCAPE)
    assert page.text(".selection") == ""


def test_search_finds_an_action_by_its_name(page, stacked):
    page.open(stacked)
    page.keys(".viewer input[type=search]", "3F7")
    assert page.text(".selection").startswith("1 of 2: 1f1b, 4 devices, 8 microbatches · 3F7 ")
    page.keys(".viewer input[type=search]", Keys.ENTER)
    assert page.text(".selection").startswith("2 of 2: zb-h1, 4 devices, 8 microbatches · 3F7 ")
    page.keys(".viewer input[type=search]", "9")
    assert "no action is named 3F79" in page.text(".selection")


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
    page.keys(CANVAS, "c", "t", "m", "i")
    pressed = (
        "return [...document.querySelectorAll('.switches [aria-pressed=true]:not([hidden])')]"
        ".map((one) => one.textContent)"
    )
    assert page.run(pressed) == ["transfers", "critical path", "idle by cause"]


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
    page.keys(CANVAS, "+", "+", Keys.ARROW_RIGHT)
    page.until("return location.hash.includes('t=')")
    page.keys(CANVAS, key)
    page.until("return !location.hash.includes('t=')")


def test_the_wheel_zooms_in_time_about_the_pointer(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2B3", 2)
    for _ in range(5):
        wheel(page, x, y, -100)
    first, last = seconds_shown(page, timeline.makespan * 0.8025**5, 0.02)
    assert 0 <= first < last <= timeline.makespan
    point(page, x + 1, y)
    assert tip(page).startswith("2B3 ")


def test_shift_and_wheel_make_rows_taller_and_keep_row_axis_and_tooltip_together(page, chart, timeline):
    page.open(chart)
    x, y = place(page, timeline, "2B3", 2)
    for _ in range(6):
        wheel(page, x, y, -100, shift=True)
    shown = page.until("return location.hash.includes('y=') && location.hash")
    assert "t=" not in shown
    row, scrolled = (int(number) for number in re.findall(r"y=(\d+),(\d+)", shown)[0])
    assert row > 100
    assert scrolled > 0
    point(page, x + 1, y)
    assert f"\ndevice {int((y - TOP + scrolled) // row)}" in tip(page)
    for _ in range(8):
        wheel(page, x, y, 100, shift=True)
    page.until("return !location.hash.includes('y=')")
    point(page, x, y)
    assert tip(page).startswith("2B3 ")


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
    fingers("touchStart", (x - 50, y), (x + 50, y))
    for apart in (60, 80, 100):
        fingers("touchMove", (x - apart, y), (x + apart, y))
    fingers("touchEnd")
    first, last = seconds_shown(page, timeline.makespan / 2, 0.05)
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
    return page.run(
        f"const canvas = document.querySelector('{CANVAS}'), context = canvas.getContext('2d');"
        "const data = context.getImageData(0, 0, canvas.width, canvas.height).data, found = {};"
        "for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) {"
        "  const key = '#' + [0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, '0')).join('');"
        "  found[key] = (found[key] || 0) + 1; } return found;"
    )


def test_a_hidden_kind_is_not_drawn_as_idle(page, chart):
    page.open(chart)
    page.keys(CANVAS, "m")
    page.until(FRAMES)
    before = colours(page)
    page.find(".legend button").click()
    page.until_true(lambda: colours(page).get("#2853a3", 0) < 100, "F is hidden")
    after = colours(page)
    assert before["#2853a3"] > 1000
    assert after.get("#2853a3", 0) < 100
    assert after["#b2bab1"] == pytest.approx(before["#b2bab1"], rel=0.01)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """1F1B in which all devices are filled after 4 F and 3 B, 10 s, and the drain begins 11 s before the end."""
    path = tmp_path_factory.mktemp("viewer") / "long.html"
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=1024), ppsim.Costs(forward=1.0, backward=2.0))
    assert run.makespan == 3 * (1024 + 3)
    path.write_text(page_of(run), encoding="utf-8")
    return path.as_uri()


def across(page, part, device):
    """Pixels of a part of the width, in the row of a device of a chart that stands alone and shows memory."""
    wide = page.run(f"return document.querySelector('{CANVAS}').clientWidth") - LEFT - 122
    return LEFT + part * wide, TOP + (device + 0.5) * 44


def test_fill_and_drain_take_most_of_the_width_where_the_steady_part_would(page, long):
    page.open(long)
    point(page, *across(page, 0.18, 3))  # half of the fill, at 5 s
    assert tip(page).startswith("3B0   B full backward\n")
    point(page, *across(page, 0.825, 0))  # half of the drain, at 3,075.7 s
    assert tip(page).startswith("idle\ndevice 0\nstart 3,075 s, length 1 s, end 3,076 s\nthen 0B1022,")
    page.keys(CANVAS, "e")
    page.until(FRAMES)
    point(page, *across(page, 0.5, 3))  # half of the step, at 1,540.5 s, where a pixel is 3 s
    start = float(re.findall(r"start (\S+) s", tip(page))[0].replace(",", ""))
    assert start == pytest.approx(1540.5, abs=6)
    assert page.until("return location.hash") == "#on=memory"


def test_zooming_keeps_what_lies_under_the_mouse_on_both_scales(page, long):
    page.open(long)
    x, y = across(page, 0.18, 3)
    for _ in range(3):
        wheel(page, x, y, -120)
        page.until(FRAMES)
        point(page, x + 1, y)
        point(page, x, y)
        assert tip(page).startswith("3B0 ")
    page.keys(CANVAS, "0")
    assert page.until("return !location.hash")


def test_flat_rows_of_many_actions_are_shaded_by_their_busy_part(page, tmp_path):
    path = tmp_path / "flat.html"
    timeline = ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=512))
    path.write_text(page_of(timeline), encoding="utf-8")
    page.open(path.as_uri())
    assert "busy, from none to all of the time" in page.text(".legend")
    found = colours(page)
    assert found["#16305f"] > 10_000  # the steady part, busy all of the time
    assert found["#2853a3"] > 1000  # F of the enlarged fill
    assert found["#ffd426"] > 1000  # B of the enlarged drain


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_their_own_ground(page, chart, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.open(chart)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    idle, hatch = {"light": ("#b2bab1", "#8c948b"), "dark": ("#454945", "#6a706a")}[scheme]
    found = colours(page)
    assert found[idle] > found[hatch] > 100
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


def test_it_prints_on_one_page_of_paper(page, stacked):
    page.open(stacked)
    paper = base64.b64decode(page.browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 1
    wide, high = (float(side) for side in re.findall(rb"/MediaBox \[0 0 (\S+) (\S+)\]", paper)[0])
    assert wide > high
    assert len(paper) > 20_000  # it holds the picture
    page.until("return !document.documentElement.classList.contains('paper')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["", "#on=transfers,critical,memory,ledger&at=0,7"])
def test_axe_finds_no_serious_fault(page, stacked, scheme, state):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.open(stacked + state)
    page.find("summary").click()
    faults = page.serious_faults()
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert faults == []


def test_a_notebooks_frame_has_no_heading_of_its_own_and_leaves_the_wheel(page, tmp_path):
    run = ppsim.simulate(ppsim.build("1f1b", devices=8, microbatches=512))
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{run._repr_html_()}", encoding="utf-8")
    page.browser.get(path.as_uri())
    page.browser.switch_to.frame(0)
    page.until("return document.documentElement.dataset.drawn")
    heading, label = page.text("h1"), page.find(CANVAS).get_attribute("aria-label")
    page.browser.switch_to.default_content()
    assert heading == ""
    assert label.startswith("1f1b, 8 devices, 512 microbatches: 1,557 s")
