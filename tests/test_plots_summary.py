"""The summary: every measure with its unit and definition, every cost with its origin."""

import itertools
import re

from command_line import CONFIGS, LLAMA
from command_line import ppsim as command

import ppsim


def run(name, devices=4, microbatches=8, costs=None, **options):
    return ppsim.simulate(
        ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs, engine="event"
    )


def cells(text):
    """The cells of each line, so that a page may have further rows and columns of other measures."""
    return [re.split("  +", line) for line in text.splitlines()]


def device_tables(text):
    """The table of devices as one mapping of column -> cell per row."""
    lines = cells(text)
    start = next(number for number, line in enumerate(lines) if line[0] == "device")
    rows = itertools.takewhile(lambda line: line[0][:1].isdigit(), lines[start + 1 :])
    return [dict(zip(lines[start], row, strict=True)) for row in rows]


SMALL_RUN = """\
1f1b, 2 devices, 4 microbatches

16 actions, transport async, engine event

makespan              15.04 ms             last end - first start over all devices
lower_bound           15.04 ms (at bound)  no order with the same peaks is faster; (+x %): makespan
                                           above the bound
span                  15.04 ms             max over devices of (its last end - its first start)
bubble_fraction       0.2021 (20.2 %)      1 - sum(busy) / (devices x makespan): idle / total
bubble_ratio          0.2533 (25.3 %)      sum(idle) / sum(busy): idle / ideal
span_bubble_fraction  0.2021 (20.2 %)      1 - max(busy) / span: for equal devices the zero-bubble
                                           papers' bubble rate
peak_activations      2 (device 0)         maximum live activations of a device, in microbatches of
                                           one device share
peak_memory           8 GB (device 0)      maximum over devices of weights, gradients, optimizer,
                                           activations, buffers

device   busy     idle  idle / makespan  exposed communication  peak activations  peak memory
0       12 ms  3.04 ms           20.2 %                  30 µs                 2         8 GB
1       12 ms  3.04 ms           20.2 %                  10 µs                 1         6 GB
exposed communication: collectives inside its actions, and idle time under transfer, queue and
  sharding

costs
  forward           1 ms   given    one microbatch through one stage
  backward          2 ms   given    one microbatch through one stage
  latency           10 µs  given    each transfer
  activation_bytes  2 GB   given    one microbatch on one stage
  weight_bytes      4 GB   given    one stage
  gradient_bytes    0 B    default  one stage
  optimizer_bytes   0 B    default  one stage
"""


def test_the_summary_of_a_small_run_looks_like_this():
    costs = ppsim.Costs(forward=1e-3, backward=2e-3, latency=1e-5, activation_bytes=2e9, weight_bytes=4e9)
    text = run("1f1b", 2, 4, costs).summary(verbose=True, costs=True)
    for row, expected in zip(device_tables(text), device_tables(SMALL_RUN), strict=True):
        assert {column: row[column] for column in expected} == expected
    others = [line for line in cells(SMALL_RUN) if len(line) < 5]
    found = iter(cells(text))
    assert all(line in found for line in others), "a line is missing, or stands elsewhere"


def test_many_devices_are_grouped_with_their_least_and_largest_values():
    text = run("1f1b", 64, 64).summary(verbose=True, costs=True)
    first = device_tables(text)[0]
    expected = {"device": "0-3", "busy": "192 s", "idle": "189 s", "idle / makespan": "49.6 %"}
    assert {column: first[column] for column in (*expected, "peak activations")} == expected | {
        "peak activations": "61 .. 64"
    }
    assert sum(line.startswith(("0-", "4-", "60-")) for line in text.splitlines()) == 3


def test_uneven_stages_show_their_range():
    text = run("1f1b", 3, 4, ppsim.Costs(forward=[1, 2, 3], backward=[2, 4, 6], per="stage")).summary(
        verbose=True, costs=True
    )
    assert "forward    1 s .. 3 s    given    one microbatch through one stage" in text


def test_what_nobody_gave_is_said_to_be_a_default():
    text = run("1f1b").summary(verbose=True, costs=True)
    assert "forward    1 s           default  one microbatch through one stage" in text
    assert "transfers  take no time" in text
    assert "peak_memory           unknown" in text


def test_iterations_that_run_on_show_the_steady_pace():
    text = run("pipedream").summary(verbose=True, costs=True)
    assert "iteration_time          24 s" in text
    assert "steady_bubble_fraction  0.0000" in text
    # the causes of idle time add up to the bubble of all iterations: 3 x 3 of 27 x 4 seconds
    assert "0.0 %  idle / total device time between fill and drain; 11.1 % with them\n" in text


def test_the_summary_says_what_derived_costs_assume_as_json_does():
    run = ppsim.load_config(LLAMA).simulate()
    sentences = run.to_dict()["assumptions"]
    assert sentences
    text = " ".join(run.summary(verbose=True, costs=True).partition("\nassumptions\n")[2].split())
    assert text == " ".join(sentences)
    assert "assumptions" not in ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2)).summary(
        verbose=True, costs=True
    )


ANSWER = """\
1f1b, 2 devices, 4 microbatches

step    15.0 ms
memory  8.00 GB  peak of device 0, the fullest
bubble   20.2 %  idle / total device time

"""


def test_the_default_summary_is_the_answer_alone():
    costs = ppsim.Costs(forward=1e-3, backward=2e-3, latency=1e-5, activation_bytes=2e9, weight_bytes=4e9)
    text = run("1f1b", 2, 4, costs).summary()
    assert text.startswith(ANSWER)
    causes = text.removeprefix(ANSWER).splitlines()
    assert causes[0].split()[:4] == ["idle", "dependency", "10.0", "%"]
    assert len(causes) == 3


def test_the_summary_says_fits_tight_or_over():
    config = ppsim.load_config(LLAMA)
    texts = [config.changed({"schedule.name": name}).simulate().summary() for name in ("1f1b", "zb-h2")]
    assert ["fits: " in texts[0], "over: " in texts[1]] == [True, True]


def test_a_step_is_rounded_as_in_pictures_and_what_mfu_counts_is_not_broken():
    lines = run("zb-h1", devices=64, microbatches=64).summary().splitlines()
    assert any(re.fullmatch(r"step +255\.0 s", line) for line in lines)
    text = command("simulate", CONFIGS / "llama-3-70b-64xh100.yaml", "--text", "--width", 80).out
    assert "(full s x s attention)\n" in text
