"""The explorer's setup, its address, files, texts to copy and keys alone, in a real Chromium."""

import pytest
from explorer_pages import CANVAS, FOUR, IDLE, LLAMA, TWO, UNIT, choose, family, give, run, settled, start, state_of
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import ppsim


@pytest.fixture(autouse=True)
def desktop(sized):
    sized(1440, 900)


def test_the_first_visit_shows_two_schedules_with_the_setup_open(page, serve):
    with serve() as address:
        page.open(address)
        assert settled(page) == [run("1f1b"), run("zb-h1")]
        assert page.text("#title") == "4 devices, 8 microbatches"
        assert page.text("#about") == "F, I, W 1 s · transfer 0 s · async"
        assert page.find("#rail").is_displayed()
        assert page.find(CANVAS).get_attribute("aria-label").count("idle") == 2
        page.browser.get("about:blank")  # no request is in progress when the server ends


def test_a_config_on_the_command_line_is_open_at_once(page, explorer):
    page.open(explorer)
    config = ppsim.load_config(LLAMA)
    assert settled(page) == [config.simulate().makespan]
    assert page.text("#title") == "Llama 3 8B on 8 H100: 8 devices, 32 microbatches"
    choose(page, "Recompute", "full")
    choose(page, "Optimizer step", "sync")
    changed = config.changed({"layout.recompute": "full", "optimizer": "sync"}).simulate()
    assert settled(page) == [changed.makespan]
    assert state_of(page)["common"]["changes"] == {"layout.recompute": "full", "optimizer": "sync"}
    labels = page.run("return [...document.querySelectorAll('#rail details label')].map((one) => one.textContent)")
    assert {"Scatter transfers", "Sequence length (tokens)", "Tensor parallelism (GPUs)"} <= set(labels)
    assert not [label for label in labels if "_" in label]
    label = (
        "return getComputedStyle(document.querySelector('.changed label'), '::after').content.includes('file: none')"
    )
    assert page.run(label)
    choose(page, "Recompute", "other …")
    give(page, "layout.recompute", "selective")
    page.until("return state.common.changes['layout.recompute'] === 'selective'")
    page.find("#keys input[type=search]").send_keys("scatter")
    page.run("document.querySelector(\"select[name='layout.scatter_transfers']\").focus()")
    assert "tensor-parallel group" in page.find("select[name='layout.scatter_transfers'] + small").text
    page.run("document.querySelector('[aria-label=Config]').focus()")
    choose(page, "Config", "unit-costs")
    assert page.run("return document.activeElement.ariaLabel") == "Config"
    assert settled(page) == [run("1f1b")]
    assert page.find("#costs").is_displayed()


def test_a_config_of_a_csv_file_is_open_with_its_costs_in_the_table(page, serve, tmp_path):
    ppsim.build("zb-v", devices=3, microbatches=5).to_csv(tmp_path / "mine.csv")
    path = tmp_path / "own.yaml"
    path.write_text("schedule: {csv: mine.csv}\ncosts: {forward: 1.0, backward: 3.0}\n")
    with serve(str(path)) as address:
        page.open(address)
        costs = {"forward": 1, "input_grad": 1.5, "weight_grad": 1.5}
        assert settled(page) == [run("zb-v", devices=3, microbatches=5, costs=costs)]
        assert page.find("input[name=input_grad]").get_attribute("value") == "1.5"
        assert "mine.csv" in page.text("#cards")
        page.browser.get("about:blank")


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("devices", "6", {"devices": 6}),
        ("latency", "0.25", {"costs": {"forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0.25}}),
    ],
)
def test_each_number_changes_all_schedules(page, explorer, name, text, changed):
    start(page, explorer, schedules=[{"schedule": "1f1b"}, {"schedule": "zb-v"}])
    give(page, name, text)
    assert settled(page) == [run("1f1b", **changed), run("zb-v", **changed)]
    assert str(state_of(page)["common"][name]) == text


def test_a_list_of_costs_becomes_rows_of_devices(page, explorer):
    start(page, explorer, schedules=[{"schedule": "1f1b"}, {"schedule": "zb-v"}])
    give(page, "forward", "1, 2, 1, 2")
    page.until("return state.common.by_device[0]?.devices")
    costs = {"forward": [1, 2, 1, 2], "input_grad": 1, "weight_grad": 1}
    assert settled(page) == [run("1f1b", costs=costs), run("zb-v", costs=costs)]
    common = state_of(page)["common"]
    assert (common["forward"], common["by_device"][0]) == (1, {"devices": "1, 3", "forward": 2})
    values = "return [...document.querySelectorAll('#costs [data-place]')].map((one) => one.value)"
    assert page.run(values)[:10] == ["all", "1", "1", "1", "0", "1, 3", "2", "", "", ""]
    page.browser.get(explorer + "#p=8&m=8&F=1&I=1,1,1,1,3,3,3,1&s=1f1b")
    page.until("return state.common.by_device[0]?.devices === '4-6'")


def test_a_row_of_costs_names_devices_and_a_new_empty_row_follows(page, explorer):
    start(page, explorer, schedules=[{"schedule": "zb-v"}])
    before = settled(page)
    give(page, "by_device", "last")
    page.until("return !writing || location.hash === '#' + linkText()")
    give(page, "forward", "1.6", place=1)
    settled(page)
    page.until("return !find('undo').disabled")
    page.find("#undo").click()  # naming a device is no step of its own
    page.until("return find('undo').disabled")
    assert settled(page) == before
    page.find("#redo").click()
    page.until("return state.common.by_device.length")
    assert settled(page) == [run("zb-v", costs={"forward": [1, 1, 1, 1.6], "input_grad": 1, "weight_grad": 1})]
    assert len(page.browser.find_elements("css selector", "#costs tbody tr")) == 3
    page.find("#costs [data-place='0,1']").send_keys(Keys.ENTER)
    assert page.run("return document.activeElement.dataset.place") == "1,1"
    page.run(
        "const data = new DataTransfer(); data.setData('text', arguments[0]);"
        "const paste = new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true });"
        "document.querySelector('#costs [data-place=\"1,0\"]').dispatchEvent(paste)",
        "0\t2\t1\t1\n1-2\t1.5\t1\t1",
    )
    costs = {"forward": [2, 1.5, 1.5, 1], "input_grad": 1, "weight_grad": 1}
    assert settled(page) == [run("zb-v", costs=costs)]
    assert "dev. 0: F 2, I 1, W 1; dev. 1-2: F 1.5, I 1, W 1" in page.text("#about")


def test_an_empty_cost_of_a_row_shows_the_cost_that_is_simulated(page, explorer):
    rows = [{"devices": "2-3", "forward": 1.2, "weight_grad": 1.4}, {"devices": "last", "input_grad": 2}]
    start(page, explorer, {**UNIT, "by_device": rows}, [{"schedule": "zb-v"}])
    costs = {"forward": [1, 1, 1.2, 1.2], "input_grad": [1, 1, 1, 2], "weight_grad": [1, 1, 1.4, 1.4]}
    assert settled(page) == [run("zb-v", costs=costs)]
    shown = "return [...document.querySelectorAll('#costs [data-place]')].slice(5).map((one) => one.placeholder)"
    assert page.run(shown)[1:5] == ["1.2", "…", "1.4", "0"]
    assert page.run(shown)[6:10] == ["1.2", "2", "1.4", "0"]
    give(page, "weight_grad", "3", place=0)
    give(page, "weight_grad", Keys.DELETE, place=1)
    page.until(IDLE)
    assert page.run(shown)[8] == "3"


def test_a_drag_along_a_number_and_the_arrows_change_it(page, explorer):
    start(page, explorer)
    number = page.find("input[name=microbatches]")
    ActionChains(page.browser).click_and_hold(number).move_by_offset(18, 0).release().perform()
    assert number.get_attribute("value") == "10"
    settled(page)
    number.send_keys(Keys.ARROW_UP)
    assert settled(page) == [run("1f1b", microbatches=11), run("zb-h1", microbatches=11)]
    assert page.text(".selection") == "1f1b: 39.0 s → 42.0 s, +7.7 % · zb-h1: 33.0 s → 36.0 s, +9.1 %"


def test_a_click_below_a_focused_field_meets_its_button_while_the_hint_goes(page, explorer):
    start(page, explorer)
    settled(page)
    page.find("[name=memory_limit]").click()
    hint = "return document.querySelector('[name=memory_limit] + small').checkVisibility()"
    assert page.run(hint)
    page.find("[aria-label='Base: schedule 2']").click()
    assert page.until("return state.view.includes('base=1')")
    page.until(hint.replace("return ", "return !"))


def test_a_limit_in_bytes_is_named_usable(page, explorer):
    start(page, explorer, {"config": "llama-3-8b-8xh100", "memory_limit": 40}, TWO[:1])
    settled(page)
    assert "usable 40.0 GB" in page.text(".legend")


def test_transport_fused_slots_and_the_memory_limit_are_chosen(page, explorer):
    start(page, explorer, schedules=[{"schedule": "dualpipe"}])
    choose(page, "Transport", "blocking")
    give(page, "overlap", "3")
    give(page, "memory_limit", "4")
    costs = {"forward": 1, "input_grad": 1, "weight_grad": 1, "overlap": 3}
    assert settled(page) == [run("dualpipe", transport="blocking", costs=costs)]
    assert page.run("return runs[0].good.chart.memory.capacity") == 4
    page.until("return document.querySelector('canvas').ariaLabel.endsWith(', memory over')")


def test_families_stages_and_options_are_chosen_for_each_schedule(page, explorer):
    start(page, explorer)
    family(page, 1, "interleaved-1f1b")
    give(page, "stages_per_device", "4")
    assert settled(page) == [run("1f1b"), run("interleaved-1f1b", stages_per_device=4)]
    family(page, 1, "seq1f1b")
    give(page, "slices", "4")
    assert settled(page) == [run("1f1b"), run("seq1f1b", slices=4)]


def test_schedules_are_added_up_to_four_removed_and_made_the_base(page, explorer):
    start(page, explorer)
    for name in ("zb-v", "dualpipe"):
        Select(page.find("#add")).select_by_value(name)
        focused = "return document.activeElement === document.querySelector('#cards').lastChild.querySelector('button')"
        assert page.run(focused)  # letters are keys of the chart
    assert len(settled(page)) == 4
    assert not page.find("#add").is_enabled()
    page.find("button[aria-label='Base: schedule 2']").click()
    page.until("return baseOf() === 1")
    page.find("button[aria-label='Remove schedule 1']").click()
    assert len(settled(page)) == 3
    assert state_of(page)["schedules"][0]["schedule"] == "zb-h1"
    page.until("return baseOf() === 0")
    page.until(f"return document.querySelector('{CANVAS}').getAttribute('aria-label').split(';').length === 3")


# The address, files, keys alone


def test_the_address_brings_back_settings_and_view(page, explorer):
    start(page, explorer)
    give(page, "latency", "0.3")
    settled(page)
    page.keys(CANVAS, "c", "+", Keys.ENTER)
    page.until("return state.view.includes('at=') && state.view.includes('t=')")
    before, makespans, told = state_of(page), settled(page), page.text(".selection")
    start(page, explorer, **before)
    assert settled(page) == makespans
    assert page.until("return document.querySelector('.selection').textContent") == told
    page.until_true(lambda: state_of(page) == before, "the state, with its view")
    page.run("location.hash = '#no state'")
    page.until("return document.querySelector('#notes').textContent.includes('holds no state')")
    page.run("location.hash = '#p=4&m=8&s=bogus:x&range=2,5&t=foo&zoo=1&more={\"future\":3}'")
    unused = "s=bogus:x, t=foo, zoo=1, future=3"
    page.until(f"return document.querySelector('#notes').textContent.includes('Not used from the address: {unused}')")
    page.until("return runs.length === 3 && runs[2].good")  # the first visit's stand beside the unknown one
    assert state_of(page)["view"] == "range=2,5"


@pytest.mark.parametrize(
    ("link", "sizes", "names"),
    [
        ("config=llama-3-8b-8xh100", ["8", "32"], ["1f1b"]),
        ("p=4&config=llama-3-8b-8xh100&s=gpipe", ["4", "32"], ["gpipe"]),
        ("m=16", ["4", "16"], ["1f1b", "zb-h1"]),
        ("s=zb-v", ["4", "8"], ["zb-v"]),
    ],
)
def test_what_a_link_leaves_out_is_that_of_its_config_or_of_the_first_visit(page, explorer, link, sizes, names):
    page.open(f"{explorer}#{link}")
    settled(page)
    assert page.run("return [...document.querySelectorAll('.pair input')].map((one) => one.value)") == sizes
    assert page.run("return state.schedules.map((one) => one.schedule)") == names
    assert page.text("#notes") == ""


def test_a_null_in_a_link_is_as_if_left_out(page, explorer):
    start(page, explorer, {**UNIT, "memory_limit": None, "devices": None})
    assert "memory_limit" not in state_of(page)["common"]
    assert "NaN" not in page.text("body")


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
    assert "mine.csv" in page.text("#cards")
    page.until("return [...document.querySelectorAll('.better')].at(-1).textContent === 'other sizes: not compared'")
    page.run(
        "window.texts = new Set(); const { prototype } = CanvasRenderingContext2D, own = prototype.fillText;"
        "prototype.fillText = function (text, ...place) { texts.add(text); own.call(this, text, ...place); };"
        "viewer.mark(marks())"
    )
    differences = page.until("return texts.size && [...texts].filter((text) => /^([−+].*%|—)$/.test(text))")
    assert differences[1:] == ["—"]  # the second schedule has a number, the file has none
    drop(page, "wrong.csv", "0F0,0X0\n1F0,1B0\n")
    assert "wrong.csv: row " in page.until("return document.querySelector('#notes').textContent")
    assert "0X0" in page.text("#notes")
    assert page.run("return runs.length") == 3


BUTTONS = "return [...document.querySelectorAll('#copies button')].map((one) => one.textContent)"


def test_texts_and_files_are_copied(page, explorer):
    start(page, explorer)
    settled(page)
    page.find("#copy").click()
    both, page_file = ["Close", "link to this page", "table of measures"], "interactive page (.html)"
    pictures = ["vector picture (.svg)", "picture (.png)"]
    assert page.run(BUTTONS) == [*both, page_file, *pictures]
    page.browser.find_elements("css selector", "#copies button")[2].click()
    assert page.find("#copied").text.startswith("measure 1f1b zb-h1 definition\nmakespan 33 s 27 s last end - first")
    assert page.find("#copied td").rect["height"] < 30  # no word is broken
    Select(page.find("#copies select")).select_by_value("1")
    texts = [*both, "command line", "config (YAML)", "Python"]
    assert page.run(BUTTONS) == [*texts, page_file, "schedule (.csv)", *pictures]
    for place in (2, 3):
        page.browser.find_elements("css selector", "#copies button")[place].click()
    assert page.run(BUTTONS)[2:4] == ["table of measures", "command line ✓"]  # what the clipboard has
    words = page.text("#copied").split()
    assert words[:2] == ["ppsim", "simulate"]
    assert words[words.index("--schedule") + 1] == "zb-h1"
    sizes = page.browser.execute_async_script(
        "const done = arguments[0]; Promise.all(['html', 'csv', 'svg', 'png'].map(async (ending) =>"
        " (await (await ask(`/api/file/${ending}`, caseOf(1))).blob()).size)).then(done)"
    )
    assert all(size > 100 for size in sizes)


def test_keys_alone_reach_and_change_everything(page, explorer):
    start(page, explorer)
    settled(page)
    page.keys("body", Keys.TAB, Keys.ENTER)  # the first stop leads to the chart
    assert page.browser.switch_to.active_element.tag_name == "canvas"
    page.run("find('fold').focus()")
    active, reached = page.browser.switch_to.active_element, []
    for _ in range(60):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        active = page.browser.switch_to.active_element
        reached.append(page.run("const one = document.activeElement; return one.name || one.id || one.textContent"))
        if active.tag_name == "canvas":
            break
    assert active.tag_name == "canvas"
    assert {"copy", "devices", "microbatches", "forward", "latency", "transport", "add"} <= set(reached)
    active.send_keys(Keys.ENTER, Keys.ARROW_RIGHT)
    assert "0F1" in page.text(".selection")
    page.keys("input[name=devices]", Keys.ARROW_UP)
    assert settled(page) == [run("1f1b", devices=5), run("zb-h1", devices=5)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_the_explorer(page, explorer, sized, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    faults = {}
    start(page, explorer, {"config": "llama-3-8b-8xh100", "devices": 8, "microbatches": 32}, TWO[:1])
    settled(page)
    page.run("for (const one of document.querySelectorAll('#rail details')) one.open = true")
    faults["config"] = page.serious_faults()
    start(page, explorer, {**UNIT, "microbatches": 7, "memory_limit": 3}, FOUR, "on=memory,ledger,critical&range=5,12")
    page.until("return document.querySelector('.note')")
    faults["fault and range"] = page.serious_faults()
    sized(390, 844)
    for tab in ("Setup", "Better"):
        page.run("if (document.body.dataset.sheet !== arguments[0]) sheet(arguments[0])", tab)
        faults[tab] = page.serious_faults()
    page.run("showCopies()")
    faults["copies"] = page.serious_faults()
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert {key: found for key, found in faults.items() if found} == {}
