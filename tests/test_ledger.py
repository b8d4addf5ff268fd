"""The bubble ledger: a partition of the idle time, and textbook schedules read the way the textbooks do."""

import json
import re

import numpy as np
import pytest
from charts import LIGHT
from command_line import CONFIGS
from hypothesis import given, settings
from matplotlib.text import Text
from random_runs import rerun, runs

import ppsim
from ppsim.analysis import CAUSES
from ppsim.analysis.ledger import Gaps


def ledger(name, costs=None, devices=4, microbatches=8, transport="async", **options):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    return ppsim.simulate(schedule, costs, transport=transport).ledger()


def blamed(found):
    """Seconds that each device waited for others to compute."""
    return np.bincount(found.blame.waiting, found.blame.seconds, minlength=len(found.total))


def causes(found):
    """The causes that occur, with their seconds on each device."""
    return {cause: pytest.approx(seconds.tolist()) for cause, seconds in found.items() if seconds.sum() > 1e-9}


@settings(max_examples=60)
@given(runs(streams=True))
def test_every_idle_second_has_one_cause(run):
    found = run.ledger()
    np.testing.assert_allclose(found.total, run.device_idle, rtol=1e-9, atol=0.0)
    assert all((seconds >= 0).all() for seconds in found.values())
    assert tuple(found) == tuple(CAUSES)


@settings(max_examples=50)
@given(runs())
def test_gaps_are_the_idle_time_between_actions_and_blame_and_phases_sum_to_what_was_waited_for(run):
    gaps, found, close = Gaps(run), run.ledger(), 1e-9 * max(run.makespan, 1e-300)
    between = run.device_end - run.device_start - run.device_busy
    np.testing.assert_allclose(gaps.idle.sum(axis=0), between, rtol=0.0, atol=close)
    assert gaps.seconds("overhead").sum() <= 1e-9 * run.makespan  # a simulated device always waits for something
    waited = found["dependency"] + found["recompute"] + found["imbalance"]
    np.testing.assert_allclose(blamed(found), waited, rtol=1e-9, atol=close)
    np.testing.assert_allclose(np.sum(list(found.waited.values()), axis=0), blamed(found), rtol=1e-9, atol=close)


def test_1f1b_with_equal_stages_is_all_fill_drain_and_dependency():
    # Device d starts d F late, ends d B early, and waits p-1-d round trips of F + B for its first backward.
    assert causes(ledger("1f1b", ppsim.Costs(forward=1.0, backward=2.0))) == {
        "fill": [0.0, 1.0, 2.0, 3.0],
        "drain": [0.0, 2.0, 4.0, 6.0],
        "dependency": [9.0, 6.0, 3.0, 0.0],
    }


def test_gpipe_waits_between_its_forwards_and_its_backwards():
    assert causes(ledger("gpipe", ppsim.Costs(forward=1.0, backward=2.0))) == {
        "fill": [0.0, 1.0, 2.0, 3.0],
        "drain": [0.0, 2.0, 4.0, 6.0],
        "dependency": [9.0, 6.0, 3.0, 0.0],
    }


def test_one_slow_stage_shows_as_imbalance():
    equal = ledger("1f1b", ppsim.Costs(forward=[1.25] * 4, backward=[2.5] * 4), microbatches=32)
    slow = ledger("1f1b", ppsim.Costs(forward=[1.0, 1.0, 2.0, 1.0], backward=[2.0, 2.0, 4.0, 2.0]), microbatches=32)
    assert equal["imbalance"].tolist() == [0.0] * 4
    assert slow["imbalance"].sum() > 0.7 * slow.total.sum()
    assert slow["imbalance"][2] == 0.0  # the slow device itself waits for nobody's slowness
    assert slow.blame.of(1)[0][0] == slow.blame.of(3)[0][0] == 2
    np.testing.assert_allclose(slow["dependency"] + slow["imbalance"], blamed(slow))


def test_latency_shows_as_transfer():
    # One microbatch: device 0 waits for F and B of the devices below, and for three transfers down and three up.
    run = ledger("1f1b", ppsim.Costs(forward=1.0, backward=2.0, latency=0.1), microbatches=1)
    assert (run["transfer"][0], run["dependency"][0]) == (pytest.approx(6 * 0.1), pytest.approx(9.0))
    found = ledger("1f1b", ppsim.Costs(forward=1.0, backward=2.0, latency=0.1))
    assert set(causes(found)) == {"fill", "drain", "dependency", "transfer"}


def test_rank_transport_on_interleaved_shows_as_queue():
    costs = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)
    options = {"devices": 4, "microbatches": 8, "stages_per_device": 2}
    free, queued = (
        ledger("interleaved-1f1b", costs, transport=transport, **options) for transport in ("async", "rank")
    )
    assert free["queue"].sum() == 0.0
    assert queued["queue"].sum() > 0.5 * (queued.total.sum() - free.total.sum()) > 0.0


def test_a_blocking_send_shows_as_transfer_on_the_sender():
    costs = ppsim.Costs(forward=1.0, backward=2.0, latency=0.5)
    assert ledger("1f1b", costs, devices=2, transport="blocking")["transfer"][0] > 0.0


def test_noise_shows_as_jitter():
    config = ppsim.load_config(CONFIGS / "unit-costs.yaml", overrides={"jitter.actions": 0.2, "jitter.transfers": 0.2})
    noisy, calm = config.simulate(), config.changed({"jitter": None}).simulate()
    found = noisy.ledger()
    assert calm.ledger()["jitter"].sum() == 0.0
    assert found["jitter"].sum() > 0.0
    np.testing.assert_allclose(found.total, noisy.device_idle, rtol=1e-9)
    assert found["imbalance"].sum() == 0.0  # the costs are equal; only the noise is not


def test_one_late_action_is_jitter_and_nothing_else_grows():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=4))
    late = run.plan.seconds.copy()
    late[-1] += 3.0  # the last B of device 1: device 0 waits for it
    found = rerun(run, seconds=late).ledger()
    moved = {cause: (found[cause] - run.ledger()[cause]).tolist() for cause in found}
    assert {cause: seconds for cause, seconds in moved.items() if any(seconds)} == {"jitter": [3.0, 0.0]}


def test_the_blame_names_who_computed_what():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=1))
    assert run.ledger().blame.of(0) == [(1, "B", 2.0), (1, "F", 1.0)]
    fused = ppsim.Schedule.from_orders(
        [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]
    )  # fmt: skip
    timed = ppsim.simulate(fused, ppsim.Costs(forward=1.0, backward=2.0, overlap=2.5))
    assert (1, "OVERLAP_F_B", 2.5) in timed.ledger().blame.of(0)


def test_the_table_has_units_totals_shares_and_who_is_waited_for():
    table = ledger("1f1b", ppsim.Costs(forward=1e-3, backward=2e-3)).table()
    assert table == (
        "idle time (ms)  fill  drain  dependency    all\n"
        "device 0           0      0           9      9\n"
        "device 1           1      2           6      9\n"
        "device 2           2      4           3      9\n"
        "device 3           3      6           0      9\n"
        "all devices        6     12          18     36\n"
        "share (%)       16.7   33.3        50.0  100.0\n"
        "\n"
        "fill        before a device's first action\n"
        "drain       after a device's last action\n"
        "dependency  another device computes what is needed next\n"
        "\n"
        "waited for another device to compute:\n"
        "  warm-up    12 ms  before a device's first backward\n"
        "  cool-down   6 ms  after its last forward\n"
        "  device 0: device 1 in B 5 ms, device 2 in B 2 ms, device 3 in B 2 ms\n"
        "  device 1: device 2 in B 4 ms, device 3 in B 2 ms\n"
        "  device 2: device 3 in B 3 ms\n"
    )


def test_the_textbook_bubble_is_fill_warm_up_cool_down_and_drain():
    # Device d runs p-d forwards and then waits p-1-d times B for its first backward, and p-1-d times F at its end.
    found = ledger("1f1b", ppsim.Costs(forward=1.0, backward=2.0))
    assert {phase: seconds.tolist() for phase, seconds in found.waited.items()} == {
        "warm-up": [6.0, 4.0, 2.0, 0.0],
        "steady": [0.0] * 4,
        "cool-down": [3.0, 2.0, 1.0, 0.0],
    }


def test_a_table_has_one_unit_and_a_notebook_shows_it_as_columns():
    found = ledger("1f1b", ppsim.Costs(forward=0.4, backward=0.8, latency=2e-4))
    head, *lines = found.table().split("\n\n")[0].splitlines()
    assert head.startswith("idle time (s)")
    cells = [number for line in lines[:-1] for number in line.split()[2:]]
    assert {len(number.partition(".")[2]) for number in cells} == {2}
    page = found._repr_html_()
    assert page.startswith("<style>")
    assert ">idle time (s)</th>" in page
    assert page.index(">all</th>") < page.index("<br>fill</th>") < page.index("<br>dependency</th>")
    bars = [re.findall("width:([^p]*)px;height", bar) for bar in re.findall("<td[^>]*><div(.*?)</div>", page)]
    widths = [sum(map(float, bar)) for bar in bars]
    assert widths == pytest.approx((120 * found.total / found.total.max()).tolist(), abs=0.3)
    for cause in ("fill", "drain", "dependency"):  # in an untrusted notebook, the colours that no style sheet sets
        assert f'<i class="pp-{cause}" style="display:inline-block' in page
        assert f"height:12px;background:{LIGHT.causes[cause]}" in page
    assert "another device computes what is needed next" in page.partition("<details>")[2]


def test_many_devices_are_summed_in_groups():
    table = ledger("1f1b", devices=64, microbatches=64).table()
    assert "devices 60-63" in table
    rows, meanings, blamed = (len(part.splitlines()) for part in table.split("\n\n"))
    assert (rows, meanings, blamed) == (1 + 16 + 2, 3, 1 + 2 + 16)  # heads, groups, sums; causes; phases, groups


def test_who_is_waited_for_fits_a_screen():
    table = ledger("dualpipe", ppsim.Costs(forward=1.1, overlap=2.7), devices=16, microbatches=64).table()
    assert "OVERLAP_F_B" in table
    assert max(map(len, table.splitlines())) <= 100


def test_nothing_idle_is_said_so():
    found = ledger("1f1b", devices=1, microbatches=3)
    assert found.table() == "no device is ever idle\n"
    assert found._repr_html_() == "no device is ever idle"


def test_the_document_is_json_with_definitions_and_sums():
    found = ledger("zb-h1", ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (document["schema"], document["unit"]) == ("ppsim.ledger/1", "seconds")
    assert document["definitions"].keys() == document["total"].keys() == document["devices"].keys()
    assert sum(document["total"].values()) == pytest.approx(found.total.sum())
    assert document["blame"][0].keys() == {"device", "waited_for_device", "kind", "seconds"}


def test_the_frame_has_a_row_a_device_and_a_column_a_cause():
    frame = ledger("1f1b").to_frame()
    assert list(frame.columns) == list(CAUSES)
    assert frame.loc[3, "fill"] == 3.0


def test_the_chart_has_a_bar_a_device_for_each_cause_that_occurs():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8))
    figure = run.plot_ledger()
    axes = figure.axes[0]
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert texts[-3:] == ["fill 4.5 %", "drain 9.1 %", "dependency 13.6 %"]
    ends = [bars[0].get_x() + bars[0].get_width() for bars in axes.containers]
    assert ends == pytest.approx([0.0, 0.0, 100 * 9 / 33])  # together as long as the idle time of device 0
    ppsim.simulate(ppsim.build("1f1b", devices=1, microbatches=2)).plot_ledger()  # nothing idle: an empty chart
