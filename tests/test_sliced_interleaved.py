"""Seq1F1B-I and SlimPipe: pieces of sequences over several stages a device, against their closed forms."""

from typing import Any

import pytest
from command_line import LLAMA

import ppsim


def build(name, p, m, v, k):
    return ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, slices=k)


def test_seq1f1b_i_walks_groups_of_whole_microbatches():
    assert [" ".join(order) for order in build("seq1f1b-i", 2, 2, 2, 2).orders()] == [
        "0F0 0F1 2F0 2F1 0F2 0F3 2B1 2F2 2B0 2F3 0B1 0B0 2B3 2B2 0B3 0B2",
        "1F0 1F1 3F0 3F1 3B1 1F2 3B0 1F3 1B1 3F2 1B0 3F3 3B3 3B2 1B3 1B2",
    ]


def test_seq1f1b_i_with_one_slice_is_interleaved_1f1b():
    whole = ppsim.build("interleaved-1f1b", devices=4, microbatches=8, stages_per_device=2)
    assert build("seq1f1b-i", 4, 8, 2, 1) == whole


def test_slimpipe_cuts_a_microbatch_in_one_slice_a_device_unless_said_otherwise():
    assert ppsim.build("slimpipe", devices=4, microbatches=2).slices == 4


def test_causal_attention_delays_slimpipe_unless_context_is_exchanged():
    even = ppsim.simulate(build("slimpipe", 4, 4, 1, 8))
    causal = ppsim.costs.causal_slice_costs(8, 0.5)
    uneven = ppsim.simulate(build("slimpipe", 4, 4, 1, 8), ppsim.Costs(slice_costs=causal))
    assert uneven.device_busy == pytest.approx(even.device_busy)
    assert uneven.makespan > even.makespan


def test_slices_of_a_causal_sequence_grow_by_equal_steps():
    assert ppsim.costs.causal_slice_costs(4, 0) == [0.25] * 4
    assert ppsim.costs.causal_slice_costs(4, 1) == [1 / 16, 3 / 16, 5 / 16, 7 / 16]
    assert sum(ppsim.costs.causal_slice_costs(5, 0.3)) == pytest.approx(1)


def test_causal_slices_are_priced_by_their_part_of_the_time_and_by_a_model():
    schedule = build("slimpipe", 4, 4, 1, 8)
    listed, by_part = (
        ppsim.simulate(schedule, ppsim.Costs(slice_costs=costs))
        for costs in (ppsim.costs.causal_slice_costs(8, 0.5), {"attention": 0.5})
    )
    assert by_part == listed
    case = ppsim.load_config(LLAMA, overrides={"schedule.name": "slimpipe"})
    even, causal = (one.simulate() for one in (case, case.changed({"costs.slice_costs": "causal"})))
    model: Any = case.model
    whole, core = (
        sum(getattr(layer, name) for layer in model.layers for name in names)
        for names in (("forward", "input_grad", "weight_grad"), ("attention_core",))
    )
    first, last = causal.table.slice_fraction[[0, -1]]
    assert (first, last) == pytest.approx(((1 - 3 * core / whole * 7 / 8) / 8, (1 + 3 * core / whole * 7 / 8) / 8))
    assert causal.device_busy == pytest.approx(even.device_busy)


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [("causal", "needs a model"), ({"attention": 2}, "from 0 to 1"), ({"part": 1}, "must give attention")],
)
def test_slice_costs_refuse_what_is_not_legal(costs, sentence):
    with pytest.raises(ppsim.CostError, match=sentence):
        ppsim.simulate(build("slimpipe", 2, 2, 1, 2), ppsim.Costs(slice_costs=costs))


@pytest.mark.parametrize(
    ("slices", "attention", "sentence"),
    [(0, 0.5, "slices=0 must be a whole number of at least 1"), (4, 1.5, "attention=1.5 must be a number from 0 to 1")],
)
def test_causal_slices_refuse_what_is_not_legal(slices, attention, sentence):
    with pytest.raises(ppsim.CostError, match=sentence):
        ppsim.costs.causal_slice_costs(slices, attention)


@pytest.mark.parametrize(
    ("name", "sizes", "sentence"),
    [
        ("seq1f1b-i", (6, 5, 2, 2), "a group holds ceil.* = 3 whole microbatches; use 3 or 6 microbatches"),
        ("seq1f1b-i", (6, 2, 2, 2), "= 3 whole microbatches; use 3 microbatches"),
        ("seq1f1b-i", (4, 8, 2, 0), "slices=0 must be a whole number of at least 1"),
        ("slimpipe", (4, 8, 1, 6), "slimpipe: slices=6 with devices=4.* use 4 or 8 slices"),
        ("slimpipe", (4, 8, 1, 2), "use 4 slices"),
        ("slimpipe", (4, 8, 1, 10**8), "slices=100000000 makes more than"),
    ],
)
def test_a_refused_size_names_its_rule(name, sizes, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        build(name, *sizes)
