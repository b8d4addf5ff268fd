"""The explorer's layout, interactions and states, in a real Chromium."""

import json
import re
from urllib.parse import quote

import pytest
from explorer_pages import CANVAS, FOUR, FRAMES, UNIT, give, run, settled, start, state_of
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import ppsim

HELD = """
    const {{ fetch }} = window;
    window.fetch = (path, given) => (path + given?.body).includes('{}')
      ? new Promise((done) => {{ window.answer = () => done(fetch(path, given)); }}) : fetch(path, given);
"""  # the answer to a request that has a word waits until the test calls answer()


@pytest.fixture(autouse=True)
def desktop(sized):
    sized(1440, 900)


COVERED = """
    const { top, bottom } = document.querySelector(arguments[0]).getBoundingClientRect();
    return ["#viewer .pane", "#viewer .status", "#tabs"].filter((css) => {
      const box = document.querySelector(css).getBoundingClientRect();
      return box.bottom > top + 1 && box.top < bottom - 1;
    });
"""  # the parts of the page that an element covers

# Layout

SIZES = {4: {"devices": 4, "microbatches": 8}, 64: {"devices": 64, "microbatches": 256}}


@pytest.mark.parametrize(("wide", "tall", "devices"), [(1440, 900, 64), (1920, 1080, 4), (390, 844, 4), (390, 844, 64)])
def test_rows_titles_numbers_and_axis_lie_inside_the_window(page, explorer, sized, wide, tall, devices):
    sized(wide, tall)
    for schedules in (FOUR, FOUR[2:3]):
        start(page, explorer, {**UNIT, **SIZES[devices], "memory_limit": devices + 1}, schedules)
        settled(page)
        page.run(FRAMES)
        assert page.run("return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [
            wide, tall,
        ]  # fmt: skip
        pane, canvas, lines = (page.find(one) for one in ("#viewer .pane", CANVAS, "#lines"))
        assert page.run("return arguments[0].scrollHeight - arguments[0].clientHeight", pane) <= 1
        box = canvas.rect
        assert box["y"] >= 44
        assert box["x"] + box["width"] <= wide
        assert box["y"] + box["height"] <= tall - (50 if wide == 390 else 0)
        assert page.run("return viewerPlaces.length") == len(schedules)
        for place in page.run("return viewerPlaces.map((one) => [one.title, one.rows, one.end, one.bottom])"):
            assert place == sorted(place)
            assert place[0] >= 0
            assert place[3] <= box["height"] - 24  # the axis is below
        assert box["height"] >= (0.8 if wide == 390 else 0.4) * tall or len(schedules) == 1
        assert lines.is_displayed() or wide == 390


def test_the_range_panel_is_at_the_right_of_wide_windows_and_below_in_others(page, explorer, sized):
    start(page, explorer, schedules=FOUR, view="range=5,12")
    settled(page)
    below = page.find(".range").rect
    assert below["y"] > page.find(CANVAS).rect["y"] + page.find(CANVAS).rect["height"]
    sized(1920, 1080)
    page.until("return document.querySelector('.range').getBoundingClientRect().left > 1500")
    assert page.find(".range").rect["width"] == 336
    page.keys(CANVAS, Keys.ESCAPE)
    page.until("return document.querySelector('.range').hidden")
    assert page.find(CANVAS).rect["width"] == 1920 - 304


def test_a_drag_selects_what_it_passes_before_the_panel_narrows_the_chart(page, explorer, sized):
    sized(1920, 1080)
    start(page, explorer)
    settled(page)
    canvas = page.find(CANVAS)
    wide, tall = canvas.size["width"], canvas.size["height"]
    axis = page.find("#viewer .status").rect["y"] - canvas.rect["y"] - 25
    move = ActionChains(page.browser).move_to_element_with_offset(canvas, 354 - wide / 2, axis - tall / 2)
    move.click_and_hold().move_by_offset(150, 0).move_by_offset(150, 0).release().perform()
    second = (wide - 54 - 104) / (33 * 1.004)  # pixels
    page.until(  # the address may have seen the half of the drag
        "const shown = (new URLSearchParams(location.hash.slice(1)).get('range') || '').split(',').map(Number);"
        "return arguments[0].every((time, at) => Math.abs(shown[at] / time - 1) < 1e-3)",
        [300 / second, 600 / second],
    )
    assert page.find("#viewer .status").rect["y"] == pytest.approx(canvas.rect["y"] + axis + 25, abs=1)  # stays


def test_a_narrow_window_starts_folded_with_one_menu_of_views(page, explorer, sized):
    sized(1000, 800)
    start(page, explorer)
    settled(page)
    assert not page.find("#rail").is_displayed()
    assert not page.find(".views").is_displayed()
    page.find("#views").click()
    assert page.find(".views").is_displayed()
    page.keys(CANVAS, "\\")
    assert page.find("#rail").is_displayed()


def test_a_phone_has_sheets_and_the_chart_fills_the_first_screen(compared, page, explorer, sized):
    sized(390, 844)
    start(page, explorer, schedules=FOUR)
    settled(page)
    tabs = {one.text: one for one in page.browser.find_elements("css selector", "#tabs button")}
    assert list(tabs) == ["Chart", "Setup", "Range", "Better"]
    assert page.find(CANVAS).rect["height"] > 700
    assert page.find("#title").rect["height"] <= 44
    assert page.run("const one = find('title'); return one.scrollHeight <= one.clientHeight + 1")
    bar = "return ['undo', 'redo', 'copy', 'views'].map((name) => find(name).getBoundingClientRect().x)"
    places = page.run(bar)
    tabs["Setup"].click()
    assert page.run(bar) == places  # a button that one aims at is no other one
    assert page.find("[name=devices]").rect["y"] < page.find("#cards").rect["y"]  # as on wide windows
    assert page.find("#rail").rect["height"] <= 0.54 * 844 + 1
    page.until(f"return document.querySelector('{CANVAS}').clientHeight < 400")
    tabs["Range"].click()
    assert "Drag along the axis" in page.find("#range").text
    page.find("#range p button").click()
    text = page.until("const text = document.querySelector('#range').innerText; return text.includes('Range') && text")
    assert text.startswith("Range 0.0 – 33.0 s")  # as long as the longest step
    assert page.run("return getComputedStyle(find('tabs').children[2], '::after').content") == '" •"'
    assert "72.7 % busy\n27.3 % idle" in text
    shares = [float(share) for share in re.findall(r"([\d.]+) % (?:busy|idle|after its end)", text)]
    assert sum(shares) == pytest.approx(400, abs=0.5)  # of each schedule all
    assert "18.2 % after its end" in text
    names = page.run("return [...document.querySelectorAll('#range tbody :is(th, td:last-child)')].map((one) =>"
                     "[one.textContent, one.getBoundingClientRect().top])")  # fmt: skip
    assert [text for text, _ in names[:2]] == ["1f1b", "peak 4 act."]
    assert names[0][1] == names[1][1]  # beside its name
    tabs["Better"].click()
    assert "zb-v: " in page.find("#better").text
    rows = "return [...document.querySelectorAll('#better p:not(.quiet)')].map((one) => one.offsetHeight)"
    assert page.run(rows) == [44] * 4  # buttons are beside the text, in one line
    assert page.find("#undo").is_displayed()  # takes back what *Add* did
    tabs["Setup"].click()
    give(page, "devices", "x")
    fault = page.until("return document.querySelector('#lines .note .fault')?.innerText")
    assert fault.startswith("Devices 'x': must be a whole number")
    assert page.find("#lines .note .fault").is_displayed()
    tabs["Setup"].click()
    page.until(f"return document.querySelector('{CANVAS}').clientHeight > 700")


def test_one_schedule_of_few_devices_has_a_table_of_devices_and_lower_bounds(page, explorer):
    start(page, explorer, {**UNIT, "latency": 0.1}, [{"schedule": "zb-v"}])
    settled(page)
    table = page.until("return document.querySelector('.devices table')?.innerText")
    assert "last action" in table
    assert [line.split("\t")[0] for line in table.splitlines()] == ["device", "0", "1", "2", "3"]
    assert page.text(".devices summary") == "Devices, times in s"
    assert "Lower bounds: counting 26.4 s" in page.text(".devices p")
    assert page.find(".devices").rect["y"] + page.find(".devices").rect["height"] <= 900


# Interactions


def test_the_views_keys_and_play_work_where_nothing_is_typed(page, explorer):
    start(page, explorer, {**UNIT, "latency": 0.1})
    settled(page)
    body = page.find("body")
    body.send_keys("c", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert re.match(r"critical path of 1f1b, action \d+ of \d+: 1F0 waits for 0F0", page.text(".selection"))
    body.send_keys("t", "t", Keys.ARROW_RIGHT)
    assert ": 2F0 waits for 1F0" in page.text(".selection")  # another view does not begin anew
    body.send_keys("b")
    page.until("return baseOf() === 1")
    first = "document.querySelector(\"button[aria-label='Base: schedule 1']\")"
    listed = f"{first}.ariaDisabled === 'false'"
    page.until(f"return {listed} && location.hash.includes('base=1')")  # the list and the link are written
    page.run(f"{first}.click()")
    page.until("return baseOf() === 0")
    body.send_keys("m", "t")
    pressed = "return [...document.querySelectorAll('.views [aria-pressed=true]')].map((one) => one.textContent)"
    assert page.run(pressed) == ["Idle by cause", "Critical path", "Transfers"]
    body.send_keys("2")
    assert page.text(".selection").startswith("zb-h1 · ")
    body.send_keys("+")
    page.until("return state.view.startsWith('t=')")
    body.send_keys("0")
    page.until("return !state.view.startsWith('t=')")
    body.send_keys(".")
    page.until("return document.querySelector('.selection').textContent.startsWith('at ')")
    body.send_keys("/")
    assert page.run("return document.activeElement.type") == "search"
    page.find(CANVAS).send_keys("?")
    assert "play the step" in page.until("return document.querySelector('dialog[open]')?.innerText")


def test_a_range_has_its_numbers_and_is_part_of_the_address(page, explorer):
    start(page, explorer, {**UNIT, "latency": 0.1}, FOUR)
    settled(page)
    canvas = page.find(CANVAS)
    rows = "return viewerPlaces.map((one) => one.row)"
    before = page.run(rows)
    axis = page.run("return viewerPlaces.at(-1).bottom") + 10 - canvas.size["height"] / 2
    ActionChains(page.browser).move_to_element_with_offset(canvas, 0, int(axis)).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    text = page.until("const panel = document.querySelector('.range'); return !panel.hidden && panel.innerText")
    assert all(one["schedule"] in text for one in FOUR)
    page.until("return state.view.includes('range=')")
    assert page.run(rows) == pytest.approx(before, abs=3)  # memory stays below them
    page.run("[...document.querySelectorAll('.range button')].find((one) => one.textContent === 'Zoom to it').click()")
    page.until("return state.view.includes('t=')")


def test_better_schedules_are_named_and_added(compared, page, explorer):
    start(page, explorer, {**UNIT, "latency": 0.1}, [{"schedule": "zb-h1"}])
    settled(page)
    page.until("return document.querySelector('.better button')?.textContent === 'Add'")
    line = page.run("return document.querySelector('.better').innerText")
    assert re.fullmatch(  # which is said, since another is faster
        r"at its bound · [\w-]+: −\d+\.\d %, the fastest that a framework runs, same memory\sAdd", line
    )
    page.click(".better button")
    steps = settled(page)
    assert len(steps) == 2
    assert steps[1] < steps[0]


def test_better_names_no_twin_of_what_is_shown_and_the_imbalance_that_costs_more(compared, page, explorer):
    page.open(explorer + "#p=4&m=8&s=1f1b,zb-h1,zb-v")
    page.until("return faster.left === 0")
    assert "interleaved-zb" not in page.run("return all().map((index) => betterOf(index).text).join()")
    page.open(explorer)  # with a config
    text = page.until("return /partition: −/.test(betterOf(0).text) && betterOf(0).text")
    assert text == "imbalance 26.9 %, optimal partition: −19.2 %"
    assert page.run("return betterOf(0).acts[0][0]") == "Use it"
    words = "runs[0].good.evened = arguments[0]; const { text, acts = [] } = betterOf(0); return [text, ...acts].join()"
    assert page.run(words, 0) == "imbalance 26.9 %"  # while its step is unknown
    assert "partition" not in page.run(words.replace("arguments[0]", "runs[0].good.chart.step"))
    assert page.run("return runs[0].good.chart.interval.map((one) => one > 0)") == [True, True]


def test_a_row_of_costs_on_the_first_visit_is_compared_anew(compared, page, explorer):
    page.browser.get(explorer + "#p=4&m=8&s=1f1b,zb-h1")
    page.until("return typeof runs !== 'undefined' && runs.length > 0 && faster.found.length > 0")
    page.run(
        "window.asked_for = []; const { fetch } = window; window.fetch = (path, given) => {"
        "  if (path !== '/api/better') return fetch(path, given);"
        "  asked_for.push(JSON.parse(given.body).by_device); return Promise.resolve(Response.json({ found: [] })); };"
    )
    give(page, "by_device", "2")
    give(page, "forward", "2", place=1)
    assert page.until("return asked_for.find((rows) => rows?.[0].forward === 2)") == [{"devices": 2, "forward": 2}]
    page.until("return faster.key.includes('by_device') && !faster.found.length")


def test_of_four_schedules_the_slowest_but_the_base_is_replaced(page, explorer):
    start(page, explorer, schedules=[{"schedule": name} for name in ("zb-h1", "gpipe", "zb-v", "1f1b")])
    settled(page)
    page.run("addFound({ schedule: 'dualpipe' })")
    settled(page)
    assert [one["schedule"] for one in state_of(page)["schedules"]] == ["zb-h1", "dualpipe", "zb-v", "1f1b"]
    assert "dualpipe took the place of gpipe, the slowest but the base" in page.text("#notes")


def test_each_schedule_has_its_advice_with_a_button(page, explorer):
    buttons = "return [...document.querySelectorAll('.better')].map((one) => one.querySelectorAll('button').length)"
    found = "faster = { key: keyOf(state.common), found: [{ schedule: 'zb-v', step: 20, peak: 3, runs: 'M' }] };"
    found += "viewer.mark(marks());"  # again and again: the page asks its server a while after it has opened
    for schedules, wanted in (
        (FOUR[:2], [1, 1]),
        ([*FOUR[:2], {"schedule": "gpipe"}, {"schedule": "chimera"}], [1, 1, 1, 2]),
    ):
        start(page, explorer, schedules=schedules)
        settled(page)
        line = "return document.querySelector('.better')?.textContent.startsWith('at its bound · zb-v: −39.4 %')"
        page.until(f"{found} {line}")
        assert page.run(buttons) == wanted  # chimera can be searched too
        assert "peak 4 → 3 act." in page.text(".better")
    start(page, explorer, {**UNIT, "latency": 0.1}, schedules=[{"schedule": "zb-v"}])
    settled(page)
    wanted = "0.4 s above its bound · slimpipe: −"
    assert page.run(f"{found.replace('zb-v', 'slimpipe')} return betterOf(0).text").startswith(wanted)


def test_a_search_runs_and_offers_what_it_found(page, explorer):
    start(page, explorer, {**UNIT, "microbatches": 4, "latency": 0.1}, [{"schedule": "zb-v"}])
    settled(page)
    page.run(f"{HELD.format('search')} faster = {{ key: keyOf(state.common), found: [] }}; searchFor(0, [20])")
    line = "return document.querySelector('.better')?.textContent"
    page.until(f"{line}.startsWith('searching, ')")
    page.run("answer()")
    page.until(f"{line}.includes('a search found 14.4 s (−11.1 %), same memory')")
    page.click(".better button")
    assert settled(page)[1] == pytest.approx(14.4)
    assert page.run(line) == "zb-v searched (below): −11.1 %, same memory"
    page.click("#undo")  # which takes back the schedule, not what was found
    page.until(f"{line}.includes('a search found 14.4 s (−11.1 %), same memoryAdd')")
    line = "faster = { key: keyOf(state.common), found: [{ schedule: 'slimpipe', step: 14, peak: 3, runs: 'M' }] };"
    line += "viewer.mark(marks()); return document.querySelector('.better')?.textContent"  # again and again, as above
    page.until(f"{line}.endsWith('peak 4 → 3 act.AddAdd the search\\'s: −11.1 %')")  # what is faster stays in sight
    page.run("state.schedules.push(...[1, 2, 3].map(() => ({ schedule: '1f1b' }))); showAll()")
    settled(page)
    page.until(f"{line}.endsWith('peak 4 → 3 act.Replace 1f1bReplace 1f1b by the search\\'s: −11.1 %')")


def test_a_search_that_found_nothing_faster_goes_on_when_asked_and_stops(page, explorer):
    start(page, explorer, schedules=[{"schedule": "1f1b"}])
    settled(page)
    page.run(
        "window.budgets = []; const { fetch } = window; window.fetch = (path, given) => {"
        "  if (path !== '/api/search') return fetch(path, given);"
        "  budgets.push(JSON.parse(given.body).seconds);"
        "  if (budgets.length === 1) return Promise.resolve(Response.json({ step: 1e9, csv: '', seconds: 5 }));"
        "  return new Promise((_, stop) => given.signal.addEventListener('abort', () => stop(given.signal.reason))); };"
        "searchFor(0, [5])"
    )
    says = "return document.querySelector('.better')?.innerText.replace(/\\s+/g, ' ').includes(arguments[0])"
    page.until(says, "nothing faster found in 5 s Search on")
    page.run("faster = { key: keyOf(state.common), found: [{ schedule: 'zb-h1', step: 27, peak: 4, runs: 'P' }] }")
    page.run("viewer.mark(marks())")
    found = "nothing faster found in 5 s · zb-h1: −18.2 %, same memory Add Search on"  # advice stays
    page.until(says, found)
    page.click(".better button:last-child")
    page.until(says, "searching, 0 s Stop")
    page.click(".better button")
    page.until(says, found)
    assert page.run("return budgets") == [5, 50]


def test_a_search_that_ends_by_itself_says_when(page, explorer):
    start(page, explorer, schedules=[{"schedule": "1f1b"}])
    settled(page)
    page.run(
        "const { fetch } = window; window.fetch = (path, given) => path === '/api/search'"
        " ? Promise.resolve(Response.json({ step: 1e9, csv: '', seconds: 1.25 })) : fetch(path, given);"
        "searchFor(0, [5, 15, 40])"
    )
    says = "return document.querySelector('.better')?.innerText.endsWith(arguments[0])"
    page.until(says, "nothing faster found: the search ended after 1.3 s")


# States


def test_every_schedule_has_a_part_with_its_name_before_its_picture(page, explorer):
    start(page, explorer, schedules=FOUR)
    settled(page)
    before = page.run("return viewerPlaces.map((one) => [one.title, one.rows, one.end])")
    page.run("window.fetch = () => new Promise(() => {}); runs = []; shown = false; showAll()")
    page.until("return document.querySelectorAll('.better.waiting').length === 4")
    assert page.run("return viewerPlaces.map((one) => [one.title, one.rows, one.end])") == before
    assert page.run("return viewerPlaces.map((one) => one.chart.short)") == [one["schedule"] for one in FOUR]
    assert page.run("return getComputedStyle(document.querySelector('#viewer .status')).visibility") == "hidden"


def test_a_change_dims_all_schedules_at_once_and_its_faults_wait_for_the_pictures(page, explorer):
    start(page, explorer, schedules=FOUR)
    settled(page)
    page.run(
        "const { fetch } = window; window.fetch = async (path, given) => {"
        "  if (JSON.parse(given.body).schedule === '1f1b') await new Promise((done) => { window.answer = done; });"
        "  return fetch(path, given); };"
    )
    give(page, "microbatches", "7")
    page.until("return runs.filter((run) => run.next).length === 3 && marks().every(({ waiting }) => waiting)")
    shown = "return [marks().map(({ dimmed }) => dimmed), document.querySelectorAll('.told').length]"
    assert page.run(shown) == [[0.6] * 4, 0]  # dualpipe has its fault, which is not told before
    page.run("answer()")
    page.until("return runs.every((run) => !run.next && !run.flight) && document.querySelector('#lines .note')")
    assert page.run(shown) == [[0, 0, 0, 0.28], 1]


def test_a_fault_dims_only_the_schedule_concerned_and_names_the_legal_size(page, explorer):
    start(page, explorer, schedules=FOUR)
    settled(page)
    place = "return document.querySelector('#cards').getBoundingClientRect().top"
    before = page.run(place)
    give(page, "microbatches", "7")
    page.until("return runs[3].result.faults && runs.every((run) => !run.flight)")
    assert page.run(place) == before  # the setup does not move
    note = "return document.querySelector('#lines .note').innerText.split('\\n')"
    page.until("const [one] = viewerPlaces.slice(-1); return one.rows > one.note")
    box, top = page.find("#lines .note").rect, page.find(CANVAS).rect["y"]
    assert box["y"] + box["height"] <= top + page.run("return viewerPlaces[3].rows")  # above the picture
    assert page.run(note)[1:] == ["Last picture, of 8 microbatches.", "Use 8 microbatches for all", "Undo", "Remove"]
    assert page.run(note)[0].startswith("7 microbatches with 4 devices: ")
    assert page.find("input[name=microbatches]").get_attribute("aria-invalid") == "true"
    assert page.text("#setup .told") == "dualpipe: use at least 8"  # the reason is in the chart
    assert len(page.browser.find_elements("css selector", "#cards .card.bad")) == 1
    assert settled(page)[:3] == [run(one["schedule"], microbatches=7) for one in FOUR[:3]]
    assert page.find(CANVAS).get_attribute("aria-label").count("idle") == 4
    page.click("#lines .note button")
    assert settled(page)[3] == run("dualpipe", microbatches=8)
    assert page.browser.find_elements("css selector", "[aria-invalid], .note") == []


def test_a_wrong_cost_dims_all_and_is_undone(page, explorer):
    start(page, explorer)
    settled(page)
    give(page, "microbatches", "9")
    before = settled(page)
    assert page.text(".selection").startswith("1f1b: 33.0 s → 36.0 s, +9.1 %")
    give(page, "forward", "1,x")
    note = "Cost F '1,x': must be seconds of at least 0, such as 1.6"  # of all schedules: the first answer is of one
    page.until(f'return document.querySelector("#lines .fault")?.innerText.startsWith("{note}")')
    assert page.find("input[name=forward]").get_attribute("aria-invalid") == "true"
    assert "YAML" not in page.text("body main")
    assert page.text(".selection") == ""  # what the change before did
    assert page.run("return document.querySelectorAll('#lines .note').length") == 1
    page.click("#lines .note button")
    assert settled(page) == before
    give(page, "forward", "1, 2")
    note = "Cost F lists 2 values, but there are 4 devices; list 4, or give one number"
    page.until(f'return document.querySelector("#lines .fault")?.innerText.startsWith("{note}")')
    assert page.find("input[name=forward]").get_attribute("aria-invalid") == "true"
    assert page.text(".totals summary") == "idle by cause:filldraindependency"
    assert page.text(".totals tbody tr").startswith("fill——")  # what is dimmed has no numbers


def test_undo_goes_back_to_the_value_that_a_field_had_before_it_was_typed_into(page, explorer):
    start(page, explorer)
    before = settled(page)
    field = page.find("input[name=microbatches]")
    field.click()
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("16")
    page.until("return runs.every((run) => run.good.common.microbatches === 16)")
    field.send_keys("x")
    page.until("return runs.every((run) => run.result.faults?.length)")
    page.click("#lines .note button")
    assert settled(page) == before


def test_each_wrong_field_is_outlined_and_has_a_sentence_in_the_note(page, explorer):
    start(page, explorer)
    settled(page)
    give(page, "devices", "0")
    give(page, "forward", "-1")
    both = [
        "Devices '0': must be a whole number of at least 1, such as 4",
        "Cost F '-1': must be seconds of at least 0, such as 1.6 or 12 ms",
    ]
    note = "return document.querySelector('#lines .note .fault')?.innerText.split('\\n')"
    outlined = "return [...document.querySelectorAll('#setup [aria-invalid]')].map((one) => one.name)"
    page.until_true(lambda: page.run(note) == both, "both sentences")
    for told, below in ((".pair + .told", "#rail h2:nth-of-type(2)"), ("#costs + .told", "#rail [name=transport]")):
        one, other = (page.find(css).rect for css in (told, below))
        assert one["height"] < 20
        assert one["y"] + one["height"] <= other["y"] + 1  # covers nothing
    assert page.run(outlined) == ["devices", "forward"]
    give(page, "forward", "2")
    page.until_true(lambda: page.run(note) == both[:1], "one sentence")
    page.until_true(lambda: page.run(outlined) == ["devices"], "one outline")


def test_a_row_of_costs_without_devices_is_outlined_itself_and_a_large_size_is_told_its_limit(page, explorer):
    start(page, explorer)
    give(page, "by_device", "3")
    give(page, "forward", "2", place=1)
    settled(page)
    give(page, "input_grad", "9", place=2)
    page.until("return runs.every((run) => run.result && !run.flight)")
    outlined = "return [...document.querySelectorAll('#setup [aria-invalid]')].map((one) => one.dataset.place)"
    assert page.run(outlined) == ["2,0"]
    assert page.text(".told") == "Devices, row 2: devices from 0 to 3, such as 0-1 or last"
    start(page, explorer, schedules=FOUR[:3])
    settled(page)
    give(page, "microbatches", "1e9")
    page.until("return document.querySelector('.told')?.textContent.endsWith('Use at most 125,000 microbatches')")
    buttons = "return [...document.querySelectorAll('#lines .note button')].map((one) => one.textContent)"
    page.until(f"{buttons}.length === 9")
    words = [one for one in page.run(buttons) if one.startswith("Use")]
    assert words == ["Use 125,000 microbatches for all"] * 3  # each sets all schedules right
    start(page, explorer, {**UNIT, "microbatches": 6}, [*FOUR[2:], {"schedule": "interleaved-1f1b"}])
    page.until("return document.querySelector('.told')?.textContent === 'Use 8 microbatches'")  # at least 8; 4 or 8
    page.until(f"{buttons}.length === 4")
    assert page.run(buttons) == ["Use 8 microbatches for all", "Remove"] * 2
    page.click("#lines .note button")
    assert len(settled(page)) == 3
    assert page.browser.find_elements("css selector", "[aria-invalid], .note") == []


@pytest.mark.parametrize("name", ["devices", "microbatches", "forward", "latency", "overlap", "memory_limit"])
def test_no_value_of_a_field_stops_the_page(page, explorer, name):
    start(page, explorer)
    before = settled(page)
    usual = page.find(f"input[name={name}]").get_attribute("value")
    for text in ("-3", "0", "1e9", "1.5", "abc", ""):
        give(page, name, text or Keys.DELETE)
        page.until("return runs.every((run) => run.result && !run.flight)")
        is_faulty = page.run("return runs.every((run) => run.result.faults)")
        told = "return [...document.querySelectorAll('#setup .told')].length"
        outlined = "return [...document.querySelectorAll('#setup [aria-invalid]')].map((one) => one.name)"
        assert (page.run(told), page.run(outlined)) == (is_faulty, [name] * is_faulty), text
        assert page.run("return marks().map((mark) => mark.dimmed)") == [0.28 * is_faulty] * 2
        state_of(page)  # checks that the address brings the state back
    give(page, name, usual or Keys.DELETE)
    assert settled(page) == before


def test_changes_are_undone_and_done_again_by_button_key_and_the_browsers_back(page, explorer):
    start(page, explorer)
    settled(page)
    addresses = []
    for text in ("6", "5"):
        give(page, "devices", text)
        settled(page)
        addresses.append(page.until(f"return location.hash.includes('p={text}') && location.hash"))
    assert addresses[1] == "#p=5&m=8&s=1f1b,zb-h1"
    now = "return settled && location.hash === arguments[0]"
    page.browser.back()
    page.until(now, addresses[0])
    page.find("#redo").click()
    page.until(now, addresses[1])
    page.keys("#rail [name=microbatches]", Keys.CONTROL, "z")  # in a field too, if nothing is half typed
    page.until(now, addresses[0])
    assert page.run("return document.activeElement.name") == "microbatches"
    page.find("#undo").click()
    page.until("return find('undo').disabled && !find('redo').disabled")
    assert settled(page) == [run("1f1b"), run("zb-h1")]


def test_undo_takes_back_a_change_that_the_address_has_not_yet(page, explorer):
    start(page, explorer)
    before = settled(page)
    state_of(page)
    page.run("state.common.devices = 6; showAll(); find('undo').click()")
    page.until("return state.common.devices === 4 && find('undo').disabled && !find('redo').disabled")
    assert settled(page) == before
    page.find("#redo").click()
    page.until("return state.common.devices === 6")
    assert settled(page) == [run("1f1b", devices=6), run("zb-h1", devices=6)]


def test_undo_passes_over_a_state_without_a_picture(page, explorer):
    start(page, explorer)
    before = settled(page)
    give(page, "devices", "0")
    page.until("return document.querySelector('.note') && location.hash.includes('p=0')")
    give(page, "devices", "6")
    page.until("return location.hash.includes('p=6')")
    settled(page)
    page.find("#undo").click()
    page.until("return find('undo').disabled")
    assert settled(page) == before
    give(page, "devices", "0")
    page.until("return document.querySelector('.note') && location.hash.includes('p=0')")
    page.click(".note button:last-of-type")  # Undo
    page.until("return find('undo').disabled && !document.querySelector('.note')")
    assert settled(page) == before


def test_pictures_stay_until_all_of_the_changed_problem_are_there(page, explorer):
    start(page, explorer, {**UNIT, "microbatches": 32})
    settled(page)
    page.run(HELD.format("zb-h1"))
    give(page, "microbatches", "8")
    words = "return [...document.querySelectorAll('.better.waiting span')].map((one) => one.textContent)"
    page.until_true(lambda: "done, drawn with the others" in page.run(words), "the first is done")
    drawn = "return [find('title').textContent, ...viewerPlaces.map(({ chart }) => [chart.makespan, chart.dimmed])]"
    page.until_true(lambda: page.run(drawn) == ["4 devices, 32 microbatches", [105, 0.6], [99, 0.6]], "held")
    first = "const [one] = runs; runs[0] = { flight: {} }; const found = baseOf(); runs[0] = one; return found"
    assert page.run(first) == 0  # before its first picture too
    page.run("answer()")
    page.until_true(lambda: page.run(drawn) == ["4 devices, 8 microbatches", [33, 0], [27, 0]], "both at once")


def test_a_link_to_a_faulty_state_shows_the_fault_and_no_empty_axis(page, explorer):
    start(page, explorer, {**UNIT, "forward": "x"})
    note = page.until("return document.querySelector('.note')?.innerText")
    assert note.startswith("Cost F 'x': must be seconds of at least 0")
    below = (
        "const { canvas } = viewerParts, [one] = viewerPlaces.slice(-1);"
        "return [...canvas.getContext('2d').getImageData(0, one.bottom, canvas.width, 30).data]"
    )
    assert set(page.run(below)) == {255}
    page.click(".note button")
    assert settled(page) == [run("1f1b"), run("zb-h1")]
    page.until(f"{below}.some((one) => one < 255)")
    start(page, explorer, {**UNIT, "microbatches": 7}, FOUR)
    page.until("return document.querySelector('.note')?.innerText.startsWith('7 microbatches with ')")
    assert page.find(CANVAS).get_attribute("aria-label").count("idle") == 3
    start(page, explorer, {**UNIT, "microbatches": 7}, [FOUR[3], FOUR[0]])
    page.until("return viewerPlaces[0].rows > viewerPlaces[0].note")
    axis = "return viewerParts.canvas.getBoundingClientRect().top + viewerPlaces[1].bottom + 20"
    page.until_true(lambda: page.run(axis) < page.find(".legend").rect["y"], "the legend below the axis")
    page.until("return document.querySelectorAll('.devices tbody tr').length === 4")  # the only picture has its table


def test_an_unknown_schedule_is_said_once_with_a_list_and_faults_have_the_words_of_the_page(page, explorer):
    start(
        page,
        explorer,
        {**UNIT, "devices": 8, "microbatches": 12},
        [{"schedule": "interleaved-1f1b"}, {"schedule": "nosuch"}, {"schedule": "zb-h1"}],
    )
    notes = page.until(
        "return [...document.querySelectorAll('.note > span:first-child')].map((one) => one.textContent)"
    )
    assert notes[0] == "12 microbatches with group size 8: the last group has 4, and needs at least 8"
    assert not re.search("=|_", notes[0])
    assert notes[1] == "This ppsim knows no schedule of this name"
    assert (
        page.run("return document.querySelectorAll('.card > select')[1].selectedOptions[0].text") == "nosuch (unknown)"
    )
    assert page.run("return baseOf()") == 2  # the first that has a picture
    Select(page.find(".note select")).select_by_value("1f1b")
    page.until("return document.querySelectorAll('.note').length === 1")
    assert settled(page)[1] == run("1f1b", devices=8, microbatches=12)
    start(page, explorer, UNIT, [{"schedule": "nosuch"}])
    page.until("return document.querySelector('.note')?.innerText.startsWith('This ppsim knows no')")


def test_devices_that_need_other_gpus_offer_as_many_or_other_data_parallelism(page, serve):
    name, schedule = "llama-3-70b-64xh100", {"schedule": "1f1b"}
    with serve(f"configs/{name}.yaml") as address:
        start(page, address, {"config": name, "devices": 8, "microbatches": 16, "transport": ""}, [schedule])
        buttons = "return [...document.querySelectorAll('.note button')].map((one) => one.textContent)"
        assert page.until(buttons) == ["Use 128 GPUs", "Use data parallelism 1"]
        assert page.find("input[name='hardware.gpus']").is_displayed()
        page.click(".note button:nth-of-type(2)")
        changes = {"schedule.name": "1f1b", "schedule.stages_per_device": None, "schedule.options": None}
        changes |= {"schedule.devices": 8, "schedule.microbatches": 16, "layout.data": 1}
        changed = ppsim.load_config(f"configs/{name}.yaml").changed(changes).simulate()
        assert settled(page) == [changed.makespan]
        page.browser.get("about:blank")


def test_a_wrong_key_of_a_config_is_outlined_and_a_button_sets_it_right(page, explorer):
    page.browser.get("about:blank")
    page.browser.get(explorer)
    settled(page)
    for key, text, legal in [
        ("jitter.slow_devices", "banana", None),
        ("jitter.slow_devices", "1: 1.5", None),
        ("layout.tensor", "3", "Use tensor parallelism 2"),
    ]:
        give(page, key, text)
        settled(page)
        wrong = page.run("return [...document.querySelectorAll('[aria-invalid]')].map((one) => one.name)")
        buttons = page.run("return [...document.querySelectorAll('.note button')].map((one) => one.textContent)")
        assert wrong == ([] if text == "1: 1.5" else [key])
        assert legal is None or legal in buttons
    page.click(".note button")
    page.until("return state.common.changes['layout.tensor'] === 2")


def test_a_filter_shows_the_keys_that_hold_its_text(page, explorer):
    page.browser.get("about:blank")
    page.browser.get(explorer)
    settled(page)
    shown = (
        "return [...document.querySelectorAll('#keys [name]')].filter((one) => one.checkVisibility())"
        ".map((one) => one.name)"
    )
    before = page.run(shown)
    assert "layout.partition" in before  # of the file
    assert "layout.fp8_head" not in before
    page.find("#keys input[type=search]").send_keys("fp8")
    found = page.run(shown)
    assert "layout.fp8_head" in found
    assert all("fp8" in name for name in found)
    page.find("#keys input[type=search]").send_keys("9")
    assert page.run(shown) == []
    assert "no setting has fp89" in page.find("#keys").text
    page.find("#keys input[type=search]").send_keys(Keys.BACKSPACE * 4)
    assert page.run(shown) == before
    assert "no setting" not in page.find("#keys").text


def test_one_cost_of_a_device_of_dualpipe_becomes_a_factor_of_all_its_costs(page, explorer):
    start(page, explorer, {**UNIT, "by_device": [{"devices": "2", "forward": 2}]}, [{"schedule": "dualpipe"}])
    page.until("return document.querySelector('.note')")
    assert page.run("return [...document.querySelectorAll('[aria-invalid]')].map((one) => one.name)") == ["forward"]
    page.click(".note button")
    page.until("return runs[0].result.makespan")
    assert state_of(page)["common"]["by_device"][0]["weight_grad"] == "x2"


def test_a_size_that_is_no_number_is_not_in_the_title(page, explorer):
    start(page, explorer)
    settled(page)
    give(page, "microbatches", "abc")
    page.until("return document.querySelector('.fault')?.innerText.startsWith(\"Microbatches 'abc': must be\")")
    assert page.text("#title") == "4 devices, 8 microbatches"
    assert "abc" not in page.text("#rail")


def test_a_request_that_fails_in_the_server_is_asked_again(page, explorer):
    start(page, explorer)
    settled(page)
    page.run(
        "const { fetch } = window; window.fetch = (path, given) => {"
        "  if (JSON.parse(given.body).schedule !== 'zb-v') return fetch(path, given);"
        "  window.fetch = fetch;"
        "  const faults = [{ text: 'it failed', keys: [], use: [] }];"
        "  return Promise.resolve(Response.json({ faults }, { status: 500 })); };"
        "state.schedules.push({ schedule: 'zb-v' }); showAll()"
    )
    note = page.until("return document.querySelector('.note')?.innerText")
    assert note == "It failed\nTry again"
    page.click(".note button")
    assert settled(page)[2] == run("zb-v")


def test_a_phone_has_the_tools_of_the_bar_in_a_menu_that_a_touch_elsewhere_closes(page, explorer, sized):
    sized(390, 844)
    start(page, explorer)
    settled(page)
    shown = (
        "return [...document.querySelectorAll('#top .tools button, #top .tools input')]"
        ".filter((one) => one.checkVisibility()).map((one) => one.textContent)"
    )
    assert page.run(shown) == []
    page.find("#views").click()
    assert page.run(shown) == ["Memory", "Critical path", "Transfers", "", "Fit"]
    ActionChains(page.browser).move_to_element_with_offset(page.find(CANVAS), -100, 200).click().perform()
    assert page.run(shown) == []


def test_a_server_that_is_gone_is_said_and_asked_again(page, serve):
    with serve() as address:
        start(page, address)
        settled(page)
    port = address.split(":")[2].strip("/")
    give(page, "microbatches", "12")
    give(page, "forward", "2")
    note = page.until("return document.querySelector('#notes .note')?.innerText")
    assert "The server does not answer" in note
    assert "Pictures and numbers are of its last answer, of 8 microbatches." in note
    assert page.find("#notes .note").rect["y"] < page.find(CANVAS).rect["y"]
    assert page.run(COVERED, "#notes .note") == []
    assert page.text("#about").startswith("F, I, W 1 s")  # of the picture
    assert "Try again" in note
    assert page.find(CANVAS).is_displayed()
    with serve("--port", port):
        page.until("return !document.querySelector('#notes .note')")  # as soon as it is back
        page.until("return runs.every((run) => run.result.common.forward === 2)")  # each schedule
        assert settled(page)[0] == run(microbatches=12, costs={"forward": 2, "input_grad": 1, "weight_grad": 1})
    page.browser.get_log("browser")  # its refused connections


def test_a_million_actions_are_shown_while_the_page_answers(page, explorer):
    sizes = {**UNIT, "devices": 64, "microbatches": 7800}
    page.browser.get("about:blank")
    page.browser.get(explorer + "#" + quote(json.dumps({"common": sizes, "schedules": [{"schedule": "1f1b"}]})))
    page.until("return typeof runs !== 'undefined' && runs.length > 0 && runs[0].flight")
    give(page, "latency", "0.0")  # the page takes input, and a newer request takes the place of the older one
    page.until("return document.querySelector('.better.waiting')?.textContent.startsWith('simulating …')")
    settled(page)
    assert page.run("return runs[0].result.actions") == 998_400
    page.keys(CANVAS, "+", "+")
    page.keys("#top input[type=search]", "63B7799")
    assert page.text(".selection").startswith("1 of 1: ")


def test_long_work_dims_the_last_picture_and_can_be_cancelled(page, explorer):
    start(page, explorer, schedules=[{"schedule": "1f1b"}, {"schedule": "zb-h1"}])
    settled(page)
    page.run("Object.assign(state.common, { devices: 64, microbatches: 15000 }); showAll()")
    page.until("return document.querySelector('.better.waiting')?.textContent.startsWith('simulating …')")
    page.click(".better.waiting button")
    note = page.until("return document.querySelector('.note.news')?.innerText")
    assert note == "Stopped. The picture is of 4 devices and 8 microbatches.\nSimulate\nUndo"
    assert page.run(COVERED, ".note.news") == []
    assert page.run("return viewerPlaces.every(({ chart }) => chart.waiting)")  # no numbers of the old sizes
    assert page.run("return [baseOf(), document.querySelectorAll('.bad, [aria-invalid]').length]") == [0, 0]
    assert "up to date" not in page.text(".note")
    page.run("[...document.querySelectorAll('.note button')].find((one) => one.textContent === 'Undo').click()")
    assert settled(page) == [run(name) for name in ("1f1b", "zb-h1")]


def test_when_zoomed_the_end_of_a_step_does_not_cross_the_column_of_idle_time(page, explorer):
    start(page, explorer, schedules=[{"schedule": name} for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")])
    settled(page)
    page.until("return document.documentElement.dataset.drawn")
    for _ in range(3):
        page.keys("body", "+")
        page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    canvas = "const { canvas } = viewerParts, r = devicePixelRatio; return [...canvas.getContext('2d')"
    between = f"{canvas}.getImageData(canvas.width - 101 * r, 0, 10 * r, canvas.height - 34 * r).data]"
    assert set(page.run(between)) == {255}


def test_views_move_no_schedule_and_the_legend_names_causes_only_where_they_are_drawn(page, explorer):
    start(page, explorer, UNIT | {"memory_limit": 5}, FOUR)
    settled(page)
    tops = "return viewerPlaces.map((one) => one.title)"
    before = page.until(tops)
    for key in "cti":
        page.keys("body", key)
        page.run(FRAMES)
        assert page.run(tops) == before
    assert not page.find(".totals").is_displayed()


def test_in_a_narrow_window_no_advice_is_cut(page, explorer, sized):
    sized(761, 900)
    start(page, explorer, UNIT | {"latency": 0.1}, FOUR)
    settled(page)
    cut = (
        "return [...document.querySelectorAll(':is(.better, .caption) > :first-child')]"
        ".filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    )
    assert page.run(cut) == []
    page.find("#fold").click()
    page.until("return !document.querySelector('.caption')")  # no room beside the numbers
    assert page.run(cut) == []
    below = page.find("#better")
    assert below.is_displayed()
    assert all(f"{one['schedule']}: " in below.text for one in FOUR)
    assert below.rect["y"] >= page.find("#main").rect["y"] + page.find("#main").rect["height"] - 1


def test_fingers_have_buttons_for_the_steps_of_the_path(page, explorer, sized):
    sized(390, 844)
    touch = "Emulation.setTouchEmulationEnabled"
    page.browser.execute_cdp_cmd(touch, {"enabled": True})
    try:
        start(page, explorer)
        settled(page)
        assert not page.find(".finger").is_displayed()
        page.find("#views").click()
        page.find("[data-name=critical]").click()
        assert not page.find(".views").is_displayed()  # the menu is not over the path
        page.find("[aria-label='The next step']").click()
        page.find("[aria-label='The next step']").click()
        assert page.text(".selection").startswith("critical path of 1f1b, action 2 of ")
        for kind, fingers in (("touchStart", [{"x": 200, "y": 100}]), ("touchEnd", [])):  # idle time of device 0
            page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
        page.until("return document.querySelector('.selection').textContent.startsWith('1f1b · idle')")
    finally:
        page.browser.execute_cdp_cmd(touch, {"enabled": False})
