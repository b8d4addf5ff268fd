"""The site's live page in a real Chromium: its replay equals the engine bit for bit, and it works from a folder."""

import base64
import struct

import make_live_page
import numpy as np
import pytest

import ppsim

COSTS = {"F": 1.1, "I": 0.7, "W": 0.3, "c": 0.13}
SIZES = (4, 8), (8, 16)
FUSED = ("dualpipe", "dualpipe-v", "1f1b-overlap", "interleaved-overlap", "combined-1f1b", "stp")
TIMES = """
    const [name, at, costs, done] = arguments;
    load(name).then(listsOf).then((lists) => {
      const { times, bubble, memory, ledger } = chartData(name, lists[at], costs);
      const text = (column) => [...new Uint8Array(column.buffer)].map((byte) => String.fromCharCode(byte)).join("");
      done([btoa(text(times.start)), btoa(text(times.end)), bubble, memory.peaks, ledger]);
    }).catch((error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    make_live_page.main(folder, *zip(*SIZES, strict=True), pictures=False)
    return (folder / "index.html").as_uri()


def replayed(page, name, size, slot=None):
    """Starts, ends, bubble, peaks and idle time by cause, as the page computes them."""
    found = page.browser.execute_async_script(TIMES, name, f"{size[0]},{size[1]}", {**COSTS, "slot": slot})
    assert not isinstance(found, str), found
    times = [np.frombuffer(base64.b64decode(text), "<f8") for text in found[:2]]
    return (*times, *found[2:])


def same_bits(one, other):
    return [struct.pack("<d", value) for value in one] == [struct.pack("<d", value) for value in other]


def test_the_replay_has_the_bits_of_the_engine(page, live):
    page.open(live)
    costs = ppsim.Costs(forward=COSTS["F"], input_grad=COSTS["I"], weight_grad=COSTS["W"], latency=COSTS["c"])
    compared = 0
    for name in ppsim.schedules():
        for schedule in make_live_page.schedules(name, *zip(*SIZES, strict=True)):
            if not make_live_page.is_longest_path(schedule):
                continue
            size = schedule.devices, schedule.microbatches_of_a_step
            run = ppsim.simulate(schedule, costs, engine="compiled")  # whose bits are those of the other engine
            start, end, bubble, peaks, ledger = replayed(page, name, size)
            assert same_bits(start, run.row_start), (name, size)
            assert same_bits(end, run.row_end), (name, size)
            assert bubble == pytest.approx(run.bubble_fraction, abs=1e-12)
            assert peaks == pytest.approx(run.peak_activations.tolist())
            own = {cause: seconds.tolist() for cause, seconds in run.ledger().items() if seconds.max() > 1e-9}
            assert set(ledger) == set(own), (name, size)
            for cause, seconds in own.items():
                assert ledger[cause] == pytest.approx(seconds, abs=1e-9), (name, size, cause)
            compared += 1
    assert compared >= 100


def test_a_fused_slot_has_the_bits_of_the_engine(page, live):
    page.open(live)
    costs = ppsim.Costs(
        forward=COSTS["F"], input_grad=COSTS["I"], weight_grad=COSTS["W"], latency=COSTS["c"], overlap=1.7
    )
    for name in FUSED:
        run = ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), costs)
        start, end, bubble, _, _ = replayed(page, name, (4, 8), slot=1.7)
        assert same_bits(start, run.row_start), name
        assert same_bits(end, run.row_end), name
        assert bubble == pytest.approx(run.bubble_fraction, abs=1e-12), name


def test_memory_has_one_level_per_time(page, live):
    page.open(live)
    curve = """
        const [done] = arguments;
        load("1f1b").then(listsOf).then((lists) => {
          const { unpacked } = chartData("1f1b", lists["4,8"], { F: 1, I: 1, W: 1, c: 0, slot: null });
          done([...unpacked["memory time"]].slice(1, unpacked["memory offsets"][1]));
        }).catch((error) => done(String(error)));
    """
    times = page.browser.execute_async_script(curve)
    assert times == sorted(set(times))


def test_a_slider_moves_the_step_and_the_address_holds_it(page, live):
    page.open(f"{live}#schedules=1f1b,zb-h1,bpipe&p=4&m=8")
    page.until("return document.documentElement.dataset.settled")
    page.run(
        """const one = document.querySelector("input[name=F]"); one.value = 2; one.dispatchEvent(new Event("input"))"""
    )
    page.until("return location.hash.includes('F=2')")
    label = "1f1b, 4 devices, 8 microbatches: 44.0 s, idle 27.3 %"
    page.until("return document.querySelector('canvas').getAttribute('aria-label').startsWith(arguments[0])", label)
    assert "so the sliders do not move it" in page.text("#rail")


def test_the_page_has_no_serious_fault_of_accessibility(page, live):
    page.open(live)
    assert not page.serious_faults()


def test_a_size_that_a_family_does_not_allow_is_explained(page, live):
    page.open(f"{live}#schedules=1f1b,dualpipe&p=8&m=8")
    note = page.until("return document.getElementById('note').textContent")
    assert note.startswith("dualpipe: on 8 devices this page has 16 microbatches. Rule of the schedule: ")
