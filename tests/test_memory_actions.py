"""R, OFFLOAD and RELOAD put into the lists of any schedule: what that costs in time and saves in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim

FAMILIES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "gis", "dualpipe-v", "chimera")


def build(name, p=4, m=8, **options):
    return ppsim.build(name, devices=p, microbatches=m, **options)


def test_an_r_stands_directly_before_each_backward_of_the_chosen_stages():
    assert ppsim.build("1f1b", devices=1, microbatches=2, recompute="all").orders() == [
        ["0F0", "0R0", "0B0", "0F1", "0R1", "0B1"]
    ]
    first = build("interleaved-1f1b", p=2, m=2, recompute="first:1").orders()
    assert [text for text in first[0] if "R" in text] == ["0R0", "0R1"]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(FAMILIES),
    st.integers(1, 3),
    st.floats(0.1, 3),
    st.floats(0.1, 3),
    st.just(0.0) | st.floats(1e-9, 1),
)
def test_a_step_with_r_is_no_longer_than_with_backwards_longer_by_a_forward(name, rounds, forward, part, latency):
    schedule = build(name, m=8 * rounds)
    costs = {"forward": forward, "weight_grad": part, "latency": latency}
    again = ppsim.simulate(ppsim.with_recompute(schedule), ppsim.Costs(input_grad=part, **costs))
    longer = ppsim.simulate(schedule, ppsim.Costs(input_grad=part + forward, **costs))
    assert again.makespan <= longer.makespan * (1 + 1e-9)
    assert again.device_busy == pytest.approx(longer.device_busy)


@pytest.mark.parametrize("m", [1, 5])
def test_where_no_backward_waits_r_before_it_is_the_longer_backward(m):
    for name in ("1f1b", "gpipe"):
        schedule = build(name, p=1, m=m)
        again = ppsim.simulate(ppsim.with_recompute(schedule), ppsim.Costs(forward=1, backward=2))
        longer = ppsim.simulate(schedule, ppsim.Costs(forward=1, backward=3))
        assert again.makespan == longer.makespan
        backwards = again.schedule.kind == ppsim.actions.Kind.B
        assert again.end[backwards].tolist() == longer.end[longer.schedule.kind == ppsim.actions.Kind.B].tolist()


def test_with_r_a_device_holds_one_whole_activation_and_the_stored_inputs():
    costs = ppsim.Costs(input_fraction_of_activation=0.1)
    for name, under_way in (("1f1b", 4), ("gpipe", 8)):
        run = ppsim.simulate(build(name, recompute="all"), costs)
        assert run.peak_activations[0] == pytest.approx(0.1 * under_way + 0.9)
        assert ppsim.simulate(build(name, recompute="all")).peak_activations.tolist() == [1] * 4


@pytest.mark.parametrize("name", FAMILIES)
def test_free_copies_take_no_time_and_lower_the_peak(name):
    schedule = build(name)
    plain, away = (ppsim.simulate(one, ppsim.Costs()) for one in (schedule, ppsim.with_offload(schedule)))
    assert away.makespan == plain.makespan
    assert np.all(away.peak_activations <= plain.peak_activations + 1e-12)
    assert away.peak_activations[0] < plain.peak_activations[0]


def test_a_reload_stands_one_backward_before_its_own():
    assert ppsim.with_offload(build("gpipe", p=1, m=2)).orders() == [
        ["0F0", "0OFFLOAD0", "0F1", "0OFFLOAD1", "0RELOAD0", "0RELOAD1", "0B0", "0B1"]
    ]


def test_copies_of_half_a_forward_hide_behind_computing_in_pipeoffloads_order():
    schedule = build("gis", p=8, m=16, stages_per_device=2, group_size=4)
    costs = {"forward": 1, "input_grad": 1, "weight_grad": 1, "per": "stage"}
    plain = ppsim.simulate(schedule, ppsim.Costs(**costs))
    away = ppsim.simulate(ppsim.with_offload(schedule, "first:1"), ppsim.Costs(**costs, offload_latency=0.5))
    assert away.makespan == plain.makespan
    assert away.peak_activations.max() < plain.peak_activations.max()


@pytest.mark.parametrize("transform", [ppsim.with_recompute, ppsim.with_offload])
def test_what_cannot_be_chosen_is_refused_with_what_can(transform):
    with pytest.raises(ppsim.BuildError, match="'all', or 'first:1'"):
        transform(build("1f1b"), "last")
    with pytest.raises(ppsim.BuildError, match="each device has 1 stage"):
        transform(build("1f1b"), "first:2")
    with pytest.raises(ppsim.BuildError, match="evicts activations"):
        transform(build("bpipe"))
    with pytest.raises(ppsim.BuildError, match="hold R"):
        transform(ppsim.with_recompute(build("1f1b")))
    with pytest.raises(ppsim.BuildError, match="transfers, sharding actions or copies"):
        transform(ppsim.lower(build("1f1b")))


def config(**schedule):
    section = {"name": "1f1b", "devices": 4, "microbatches": 8, **schedule}
    return {"schedule": section, "costs": {"forward": 1, "backward": 2}}


def test_a_config_asks_for_r_or_copies_of_any_family_and_compare_puts_them_into_each():
    found = ppsim.compare(config(recompute="all"), ["1f1b", "gpipe", "bpipe"])
    assert {one.schedule.name: one.makespan for one in found.timelines} == {"1f1b": 41, "gpipe": 41}
    assert "evicts" in found.refused["bpipe"]
    table = ppsim.sweep(
        config(), over={"schedule.recompute": ["all", "first:1"], "schedule.recompute_placing": ["idle"]}
    )
    assert [point.measures["makespan"] for point in table.points] == [38, 38]
    away = ppsim.sweep(config() | {"costs": {"offload_latency": 0.5}}, over={"schedule.offload": ["all"]})
    assert away.points[0].measures["peak_activations"] == 3


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"recompute": "some"}, "schedule.recompute: 'some' must be all, first:1"),
        ({"recompute": "needed"}, "schedule.recompute: needed requires memory_limit"),
        ({"recompute_placing": "idle"}, "schedule.recompute_placing: has no effect without recompute; give recompute"),
        ({"recompute": "all", "offload": "all"}, "schedule.offload: excludes recompute"),
        ({"offload": "needed"}, "schedule.offload: 'needed' must be all, first:1"),
        ({"recompute": "all", "recompute_placing": "soon"}, "use one of: backward, idle, idle"),
    ],
)
def test_what_does_not_go_together_in_a_config_is_named(schedule, sentence):
    with pytest.raises(ppsim.ConfigError, match=sentence):
        ppsim.compare(config(**schedule), ["1f1b"])


def test_copies_of_derived_costs_take_the_way_to_host_memory():
    hardware = {"device": "H100 SXM", "link": "NVLink 4", "host_bandwidth": "50 GB/s", "host_latency": "20 us"}
    shape = {"num_layers": 8, "hidden": 4096, "heads": 32, "sequence": 4096, "vocabulary": 32000}
    case = {
        "model": shape, "hardware": hardware,
        "schedule": {"name": "1f1b", "devices": 4, "microbatches": 8, "offload": "all"},
    }  # fmt: skip
    run = ppsim.compare(case, ["1f1b"]).timelines[0]
    assert run.offloads.end[0] - run.offloads.start[0] == pytest.approx(run.table.activation_bytes[0] / 50e9 + 20e-6)
