"""PipeOffload: GIS with copies in alternating slots, in units of f = i = w."""

import numpy as np
import pytest

import ppsim


def simulated(p, m, v, d2h=None, **options):
    """PipeOffload with copies of d2h each way, or GIS without copies."""
    name = "gis" if d2h is None else "pipe-offload"
    options |= {} if d2h is None else {"d2h": d2h, "h2d": d2h}
    schedule = ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, **options)
    costs = ppsim.Costs(
        forward=1, input_grad=1, weight_grad=1, per="stage", offload_latency=d2h or 0.0, offload_switch=2
    )
    return ppsim.simulate(schedule, costs)


# Idle slots and live stages of the first device without offload: arXiv 2503.01328's schedule, rebuilt.
@pytest.mark.parametrize(
    ("p", "m", "v", "g", "idle", "most", "least"),
    [(8, 16, 2, 4, 18, 12, 5), (8, 16, 2, 8, 14, 16, 9), (8, 32, 5, 4, 30, 24, 17), (8, 32, 5, 8, 14, 40, 33)],
)
def test_copies_in_their_slots_take_no_time_of_the_step(p, m, v, g, idle, most, least):
    plain = simulated(p, m, v, group_size=g)
    assert plain.makespan == 3 * m * v + idle
    assert plain.peak_activations[[0, -1]] * v == pytest.approx([most, least])
    for d2h in (0.25, 0.5, 0.75):
        away = simulated(p, m, v, d2h, group_size=g)
        assert away.makespan == plain.makespan
        assert len(away.offloads) == len(away.reloads) == m * p
        assert np.all(away.peak_activations < plain.peak_activations)


def test_half_of_the_stages_away_halve_the_peak():
    assert simulated(8, 16, 2, group_size=8).peak_activations[0] * 2 == 16
    assert simulated(8, 16, 2, 0.5, group_size=8).peak_activations[0] * 2 == 8


def test_a_device_copies_out_while_its_neighbour_copies_back():
    run = simulated(8, 32, 2, 0.75, group_size=8)
    steady = [
        span.start[(span.start > 60) & (span.start < 120) & (span.device < 2)] for span in (run.offloads, run.reloads)
    ]
    assert all(len(starts) > 10 for starts in steady)
    for way in (run.offloads, run.reloads):
        mine = np.flatnonzero(way.device < 2)
        order = mine[np.argsort(way.start[mine], kind="stable")]
        assert np.all(way.end[order][:-1] <= way.start[order][1:] + 1e-9)  # one at a time through the switch


def test_what_lives_at_most_three_slots_stays():
    every = simulated(8, 16, 2, 0.5, group_size=8, chunks=2)
    assert len(every.offloads) < 2 * 16 * 8
    made, needed = dict(labelled(every, "F", every.row_end)), dict(labelled(every, "I", every.row_start))
    away = set(zip(every.offloads.stage.tolist(), every.offloads.microbatch.tolist(), strict=True))
    assert all(needed[one] - 1 - made[one] > 3 * (0.5 + 0.5) for one in away)
    assert len(simulated(8, 16, 2, 18.0, group_size=8).offloads) == 0


def labelled(run, kind, times):
    for row in np.flatnonzero(run.schedule.kind == ppsim.actions.Kind[kind]).tolist():
        yield (int(run.schedule.stage[row]), int(run.schedule.microbatch[row])), float(times[row])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chunks": 3}, "use at most 2"),
        ({"chunks": 0}, "chunks=0 must be a whole number of at least 1"),
        ({"d2h": 0}, "above 0, such as 0.5"),
        ({"h2d": "1"}, "above 0, such as 0.5"),
        ({"group_size": 9}, "from 1 to devices"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(options, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        ppsim.build("pipe-offload", devices=4, microbatches=8, **options)
