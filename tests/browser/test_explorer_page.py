"""The explorer's page in a real Chromium: every control, its address, dropped files, a million actions, keys alone."""

import json
import re
from typing import Any
from urllib.parse import quote, unquote

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import ppsim

IDLE = "return runs.every((run) => run.result && !run.flight) && document.documentElement.dataset.drawn"


def state_of(page):
    """The state in the address, once it has settled."""
    page.until("return location.hash === '#' + encodeURIComponent(JSON.stringify(state))")
    return json.loads(unquote(page.run("return location.hash"))[1:])


def start(page, explorer, **state):
    """Open the page with a state; an empty one is that of the start."""
    page.browser.get("about:blank")
    page.browser.get(explorer + ("#" + quote(json.dumps(state)) if state else ""))
    page.until("return typeof runs !== 'undefined' && runs.length > 0")
    page.until(IDLE)


def settled(page):
    page.until(IDLE)
    return page.run("return runs.map((run) => run.result.makespan)")


def give(page, name, text, place=0):
    """Type into the input of a key, as its user would."""
    field = page.browser.find_elements("css selector", f"input[name='{name}']:not([type=range])")[place]
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def choose(page, label, value, place=0):
    """Take an entry of the list beside a label."""
    xpath = f"//label[starts-with(normalize-space(.), '{label}')]/following-sibling::select"
    Select(page.browser.find_elements("xpath", xpath)[place]).select_by_value(value)


def run(name="1f1b", devices=4, microbatches=8, transport="async", costs=None, **options):
    given: dict[str, Any] = costs or {"forward": 1, "input_grad": 1, "weight_grad": 1}
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    return ppsim.simulate(schedule, ppsim.Costs(**given), transport=transport).makespan


def test_it_loads_with_two_schedules_on_one_axis_and_their_differences(page, explorer):
    start(page, explorer)
    assert settled(page) == [run("1f1b"), run("zb-h1")]
    assert page.find(".viewer canvas").get_attribute("aria-label").count("bubble") == 2
    rows = page.run("return [...document.querySelectorAll('#measures tr')].map((row) => row.innerText)")
    assert "−18.2 %" in next(row for row in rows if row.startswith("makespan"))
    assert page.run("return document.querySelector('#measures .better').textContent") == "−18.2 %"
    bound = (
        "return [...document.querySelectorAll('#measures tr')].find((row) => row.innerText.startsWith('lower bound'))"
    )
    assert page.run(f"{bound}.querySelector('.better, .worse')") is None
    assert "no order of the same actions takes less than 27 s" in page.text("#bound")
    assert "dependency" in page.text("#ledger")


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("devices", "6", {"devices": 6}),
        ("microbatches", "12", {"microbatches": 12}),
        ("forward", "1.5", {"costs": {"forward": 1.5, "input_grad": 1, "weight_grad": 1}}),
        ("input_grad", "500 ms", {"costs": {"forward": 1, "input_grad": 0.5, "weight_grad": 1}}),
        ("weight_grad", "2", {"costs": {"forward": 1, "input_grad": 1, "weight_grad": 2}}),
        ("latency", "0.25", {"costs": {"forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0.25}}),
    ],
)
def test_each_number_changes_both_schedules(page, explorer, name, text, changed):
    start(page, explorer)
    give(page, name, text)
    assert settled(page) == [run("1f1b", **changed), run("zb-h1", **changed)]
    assert str(state_of(page)["common"][name]) == text


def test_sliders_stand_beside_their_numbers_and_move_them(page, explorer):
    start(page, explorer)
    slider = page.find("input[aria-label='m, microbatches, slider']")
    number = page.find("input[name=microbatches]")
    assert abs(slider.rect["y"] + slider.rect["height"] / 2 - number.rect["y"] - number.rect["height"] / 2) < 4
    assert slider.rect["x"] + slider.rect["width"] <= number.rect["x"]
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert settled(page) == [run("1f1b", microbatches=10), run("zb-h1", microbatches=10)]
    assert number.get_attribute("value") == "10"


def test_backward_fused_slots_and_transport_are_chosen(page, explorer):
    start(
        page,
        explorer,
        common={"devices": 4, "microbatches": 8, "forward": 1, "input_grad": 1, "weight_grad": 1},
        schedules=[{"schedule": "dualpipe"}],
    )
    choose(page, "backward as", "B")
    give(page, "backward", "2.5")
    give(page, "overlap", "3")
    give(page, "latency", "0.5")
    choose(page, "transport", "blocking")
    costs = {"forward": 1, "backward": 2.5, "overlap": 3, "latency": 0.5}
    assert settled(page) == [run("dualpipe", transport="blocking", costs=costs)]


def test_families_stages_and_options_are_chosen_for_each_schedule(page, explorer):
    start(page, explorer)
    choose(page, "family", "interleaved-1f1b", place=1)
    give(page, "stages_per_device", "4")
    assert settled(page) == [run("1f1b"), run("interleaved-1f1b", stages_per_device=4)]
    choose(page, "family", "seq1f1b", place=1)
    give(page, "slices", "4")
    assert settled(page) == [run("1f1b"), run("seq1f1b", slices=4)]


def test_schedules_are_added_up_to_four_and_removed(page, explorer):
    start(page, explorer)
    page.find("#add").click()
    page.find("#add").click()
    assert len(settled(page)) == 4
    assert not page.find("#add").is_enabled()
    page.find("button[aria-label='Remove schedule 1']").click()
    assert len(settled(page)) == 3
    assert state_of(page)["schedules"][0]["schedule"] == "zb-h1"
    page.until("return document.querySelector('.viewer canvas').getAttribute('aria-label').split(';').length === 3")


def test_a_config_is_chosen_with_its_keys_and_its_memory(page, explorer):
    start(page, explorer)
    choose(page, "config", "llama-3-8b-8xh100")
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml")
    assert settled(page)[0] == config.simulate().makespan
    give(page, "layout.recompute", "full")
    choose(page, "optimizer", "sync")
    changed = config.changed({"layout.recompute": "full", "optimizer": "sync"}).simulate()
    assert settled(page)[0] == changed.makespan
    assert "1f1b: fits its devices" in page.text("#memory") or "1f1b: does not fit its devices" in page.text("#memory")
    assert state_of(page)["common"]["changes"] == {"layout.recompute": "full", "optimizer": "sync"}


def test_the_address_brings_back_settings_and_view(page, explorer):
    start(page, explorer)
    give(page, "latency", "0.3")
    settled(page)
    page.keys(".viewer canvas", "c", "+", Keys.ENTER)
    page.until("return state.view.includes('at=') && state.view.includes('t=')")
    before, makespans, told = state_of(page), settled(page), page.text(".selection")
    start(page, explorer, **before)
    assert settled(page) == makespans
    assert page.until("return document.querySelector('.selection').textContent") == told
    assert state_of(page) == before
    page.run("location.hash = '#no state'")
    page.until("return document.querySelector('#general').textContent.includes('holds no state')")


def drop(page, name, text):
    page.run(
        "const data = new DataTransfer(); data.items.add(new File([arguments[1]], arguments[0]));"
        "document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))",
        name, text,
    )  # fmt: skip


def test_a_dropped_file_is_drawn_and_a_wrong_one_is_answered_with_the_validators_sentences(page, explorer, tmp_path):
    start(page, explorer)
    right = tmp_path / "mine.csv"
    ppsim.build("gpipe", devices=3, microbatches=5).to_csv(right)
    drop(page, "mine.csv", right.read_text())
    page.until("return runs.length === 3")
    assert settled(page)[2] == run("gpipe", devices=3, microbatches=5)
    assert "mine.csv, 3 devices" in page.find(".viewer canvas").get_attribute("aria-label")
    drop(page, "wrong.csv", "0F0,0X0\n1F0,1B0\n")
    assert "wrong.csv" in page.until("return document.querySelector('#general').textContent")
    assert "0X0" in page.text("#general")
    assert page.run("return runs.length") == 3


def test_a_refused_size_is_said_and_the_last_chart_stays(page, explorer):
    start(page, explorer)
    choose(page, "family", "dualpipe")
    give(page, "devices", "3")
    page.until(IDLE)
    assert "devices=3" in page.text("#general")
    give(page, "devices", "4")
    settled(page)
    assert page.text("#general") == ""


BUTTONS = "return [...document.querySelectorAll('#copies button')].map((one) => one.textContent)"


def test_texts_and_files_are_copied(page, explorer):
    start(page, explorer)
    assert page.run(BUTTONS) == [".html file", ".svg file", ".png file", "link to this page"]
    Select(page.find("#copies select")).select_by_value("1")
    texts = ["command line", "config (YAML)", "Python"]
    assert page.run(BUTTONS) == [*texts, ".html file", ".csv file", ".svg file", ".png file", "link to this page"]
    page.find("#copies button").click()
    command = "ppsim simulate --devices 4 --microbatches 8 --forward 1 --input-grad 1 --weight-grad 1 --latency 0"
    assert page.text("#copied") == f"{command} --transport async --schedule zb-h1"
    sizes = page.browser.execute_async_script(
        "const done = arguments[0]; Promise.all(['html', 'csv', 'svg', 'png'].map(async (ending) =>"
        " (await (await ask(`/api/file/${ending}`, caseOf(1))).blob()).size)).then(done)"
    )
    assert all(size > 100 for size in sizes)


def test_a_million_actions_are_shown_while_the_page_answers(page, explorer):
    sizes = {"devices": 64, "microbatches": 7800, "forward": 1, "backward": 2}
    page.browser.get("about:blank")
    page.browser.get(explorer + "#" + quote(json.dumps({"common": sizes, "schedules": [{"schedule": "1f1b"}]})))
    page.until("return typeof runs !== 'undefined' && runs.length > 0 && runs[0].flight")
    give(page, "latency", "0")  # the page takes input, and a newer request takes the place of the older one
    page.until("return document.querySelector('#status').textContent.startsWith('simulating 1f1b')")
    assert not page.run("return document.querySelector('#progress').hidden")
    page.until(IDLE)
    assert page.run("return runs[0].result.actions") == 998_400
    page.keys(".viewer canvas", "+", "+")
    page.keys(".viewer input[type=search]", "63B7799")
    assert page.text(".selection").startswith("1 of 1: ")


def test_long_work_can_be_cancelled(page, explorer):
    page.browser.get("about:blank")
    sizes = {"devices": 64, "microbatches": 15_000, "forward": 1, "backward": 2}
    page.browser.get(explorer + "#" + quote(json.dumps({"common": sizes, "schedules": [{"schedule": "1f1b"}]})))
    page.until("return !document.querySelector('#cancel').hidden")
    page.find("#cancel").click()
    assert page.until("return document.querySelector('#general').textContent") == "1f1b: cancelled"
    give(page, "microbatches", "8")
    page.until("return runs[0].result.makespan && !runs[0].flight")
    assert page.text("#general") == ""


def test_keys_alone_reach_and_change_everything(page, explorer):
    start(page, explorer)
    active = page.browser.switch_to.active_element
    reached = []
    for _ in range(60):
        active.send_keys(Keys.TAB)
        active = page.browser.switch_to.active_element
        reached.append(
            page.run(
                "const one = document.activeElement; return one.name || one.id || one.className || one.textContent"
            )
        )
        if active.tag_name == "canvas":
            break
    assert active.tag_name == "canvas"
    assert {"devices", "microbatches", "forward", "latency", "add"} <= set(reached)
    active.send_keys(Keys.ENTER, Keys.ARROW_RIGHT)
    assert "0F1" in page.text(".selection")
    page.keys("input[name=devices]", Keys.ARROW_UP)
    assert settled(page) == [run("1f1b", devices=5), run("zb-h1", devices=5)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_the_explorer(page, explorer, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    start(page, explorer)
    choose(page, "config", "llama-3-8b-8xh100")
    settled(page)
    faults = page.serious_faults()
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert faults == []


def test_the_status_says_how_many_actions_and_how_long(page, explorer):
    start(page, explorer)
    words = page.until("return document.querySelector('#status').textContent")
    assert re.fullmatch(r"160 actions, simulated and drawn in \d+ ms", words)
