"""How long pages take to open and to redraw in a real Chromium, and how large they are."""

import json
import statistics
from urllib.parse import quote

import pytest
from pages import page_of

import ppsim


@pytest.mark.alone
@pytest.mark.parametrize(
    ("devices", "microbatches", "most_bytes", "most_seconds"), [(4, 8, 60_000, 0.5), (64, 1024, 900_000, 1.0)]
)
def test_a_page_is_small_and_opens_at_once(page, tmp_path, devices, microbatches, most_bytes, most_seconds):
    schedule = ppsim.build("1f1b", devices=devices, microbatches=microbatches)
    uneven = ppsim.Jitter(actions=0.05, transfers=0.05)  # equal times make a smaller page
    timeline = ppsim.simulate(schedule, ppsim.Costs(latency=0.1), jitter=uneven)
    path = tmp_path / "chart.html"
    path.write_text(page_of(timeline), encoding="utf-8")
    assert path.stat().st_size < most_bytes
    times = []
    for _ in range(3):  # milliseconds from the start of the navigation to the picture, as the page counts them
        page.open(path.as_uri())
        times.append(int(page.run("return document.documentElement.dataset.drawn")))
    assert min(times) < 1000 * most_seconds


CHANGE = """
    const [microbatches, done] = arguments, begun = performance.now();
    const field = document.querySelector("input[name=microbatches]");
    field.value = microbatches;
    field.dispatchEvent(new Event("change"));
    (function look() {
      const drawn = Number(document.documentElement.dataset.drawn);
      if (drawn > begun && !runs.some((run) => run.flight)) done(drawn - begun); else requestAnimationFrame(look);
    })();
"""  # milliseconds from the change to the picture
SIZES = {"devices": 8, "microbatches": 512}


@pytest.mark.alone
@pytest.mark.parametrize(
    ("common", "schedules"),
    [
        (SIZES | {"forward": 1, "backward": 2}, [{"schedule": "1f1b"}, {"schedule": "zb-h1"}]),
        (SIZES, [{"config": "llama-3-8b-8xh100"}]),
    ],
    ids=["two", "config"],
)
def test_the_explorer_redraws_8192_actions_within_200_ms(page, explorer, common, schedules):
    state = {"common": common, "schedules": schedules}
    page.browser.get("about:blank")
    page.browser.get(explorer + "#" + quote(json.dumps(state)))
    page.until(
        "return typeof runs !== 'undefined' && runs.length > 0 && runs.every((run) => run.result && !run.flight)"
    )
    assert page.run("return runs.every((run) => run.result.actions >= 8192)")
    times = []
    for change in range(13):
        page.until("return new Promise((done) => setTimeout(() => done(true), 250))")
        times.append(page.browser.execute_async_script(CHANGE, 513 - change % 2))
    assert statistics.median(times[6:]) < 200
