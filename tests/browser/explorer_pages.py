"""Steps of the tests of the explorer's page: open it with a state, type, choose, and wait for its answers."""

import json
from typing import Any
from urllib.parse import quote

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import ppsim

IDLE = "return runs.every((run) => run.result && !run.flight) && document.documentElement.dataset.drawn"
UNIT = {"devices": 4, "microbatches": 8, "forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0}
TWO = [{"schedule": "1f1b"}, {"schedule": "zb-h1"}]
FOUR = [*TWO, {"schedule": "zb-v"}, {"schedule": "dualpipe"}]
LLAMA = "configs/llama-3-8b-8xh100.yaml"
CANVAS = "#viewer canvas"
FRAMES = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"


def state_of(page):
    """The state in the address, once it has settled."""
    page.until("return location.hash === '#' + linkText()")
    state = page.run("return state")
    read = page.run("const kept = state; readLink(); const text = linkText(); state = kept; return text")
    assert read == page.run("return location.hash.slice(1)")
    return state


def start(page, explorer, common=UNIT, schedules=TWO, view=""):
    """Open the page with a state."""
    page.browser.get("about:blank")
    state = {"common": {"transport": "async", **common}, "schedules": schedules, "view": view}
    page.browser.get(explorer + "#" + quote(json.dumps(state)))
    page.until("return typeof runs !== 'undefined' && runs.length > 0 && runs.every((run) => run.result)")


def settled(page):
    page.until(IDLE)
    return page.run("return runs.map((run) => run.result.makespan)")


def give(page, name, text, place=0):
    """Type into the input of a key, as its user would."""
    field = page.browser.find_elements("css selector", f"#rail input[name='{name}']")[place]
    page.run("arguments[0].closest('details')?.setAttribute('open', '')", field)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)
    page.run("arguments[0].dispatchEvent(new Event('change', { bubbles: true }))", field)  # as Enter and Tab do


def choose(page, label, value):
    """Take an entry of the list beside a label."""
    select = page.browser.find_element("xpath", f"//label[normalize-space(.)='{label}']/following-sibling::select")
    page.run("arguments[0].closest('details')?.setAttribute('open', '')", select)
    Select(select).select_by_value(value)


def family(page, place, name):
    Select(page.find(f"select[aria-label='Schedule {place + 1}']")).select_by_value(name)


def run(name="1f1b", devices=4, microbatches=8, transport="async", costs=None, **options):
    given: dict[str, Any] = costs or {"forward": 1, "input_grad": 1, "weight_grad": 1}
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    return ppsim.simulate(schedule, ppsim.Costs(**given), transport=transport).makespan
