"""1F1B with fused F and B slots against its closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim

seconds = st.floats(0.1, 10)
# Times of F and B, and a fused slot from the longer of the two to somewhat more than their sum.
fused_times = st.tuples(seconds, seconds, st.just(0.0) | st.floats(1e-9, 1.2)).map(
    lambda parts: (*parts[:2], max(parts[:2]) + parts[2] * min(parts[:2]))
)


def test_1f1b_overlap_on_two_devices():
    assert ppsim.build("1f1b-overlap", devices=2, microbatches=5).orders() == [
        ["0F0", "0F1", "0F2", "(0F3;0B0)OVERLAP_F_B", "(0F4;0B1)OVERLAP_F_B", "0B2", "0B3", "0B4"],
        ["1F0", *(f"(1F{k + 1};1B{k})OVERLAP_F_B" for k in range(4)), "1B4"],
    ]


def test_interleaved_overlap_runs_either_part_first():
    forward_first, backward_first = (
        ppsim.build("interleaved-overlap", devices=1, microbatches=2, order=order).orders() for order in ("f_b", "b_f")
    )
    assert forward_first == [["0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", "(1F1;0B0)OVERLAP_F_B", "1B1", "0B1"]]
    assert backward_first == [["0F0", "1F0", "(1B0;0F1)OVERLAP_F_B", "(0B0;1F1)OVERLAP_F_B", "1B1", "0B1"]]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10), st.integers(1, 30), fused_times)
def test_1f1b_overlap_takes_p_pairs_and_m_minus_1_fused_slots(p, m, times):
    F, B, overlap = times
    run = ppsim.simulate(
        ppsim.build("1f1b-overlap", devices=p, microbatches=m), ppsim.Costs(forward=F, backward=B, overlap=overlap)
    )
    assert run.makespan == pytest.approx(p * (F + B) + (m - 1) * overlap, rel=1e-9)
    assert run.peak_activations.tolist() == [min(m, 2 * (p - r)) for r in range(p)]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["f_b", "b_f"]), fused_times)
def test_interleaved_overlap_makespan_and_activations(p, v, groups, order, times):
    f, b, overlap = times
    m = groups * p
    run = ppsim.simulate(
        ppsim.build("interleaved-overlap", devices=p, microbatches=m, stages_per_device=v, order=order),
        ppsim.Costs(forward=f, backward=b, overlap=overlap, per="stage"),
    )
    unfused = (p - 1) + (p * (v - 1) + 1)
    assert run.makespan == pytest.approx(unfused * (f + b) + (m * v - p * (v - 1) - 1) * overlap, rel=1e-9)
    held = [min(m * v, 2 * (p - r - 1) + (v - 1) * p + 2) / v for r in range(p)]
    assert run.peak_activations == pytest.approx(held, rel=1e-9)


def test_a_fused_slot_costs_what_its_own_stages_cost():
    schedule = ppsim.build("1f1b-overlap", devices=2, microbatches=4)
    overlap = [[2.5, 9], [9, 3.5]]
    run = ppsim.simulate(schedule, ppsim.Costs(forward=1, backward=2, overlap=overlap, per="stage"))
    lengths = run.end - run.start
    assert lengths.tolist() == [1, 1, 1, 2.5, 2, 2, 2, 1, 3.5, 3.5, 3.5, 2]


def test_without_a_fused_kernel_the_parts_run_in_the_order_written():
    costs = ppsim.Costs(forward=1, backward=2)
    for order, starts in (("f_b", [[2, 3], [5, 6]]), ("b_f", [[4, 2], [7, 5]])):
        run = ppsim.simulate(ppsim.build("interleaved-overlap", devices=1, microbatches=2, order=order), costs)
        rows = [run.schedule.label(row) for row in range(len(run.row_start))]
        at = dict(zip(rows, (2 * run.row_start).tolist(), strict=True))
        assert [[at["0F1"], at["1B0"]], [at["1F1"], at["0B0"]]] == starts


def test_every_size_is_valid_and_runs_under_queued_transfers():
    costs = ppsim.Costs(forward=1, backward=2, overlap=2.5, latency=0.1)
    for p in range(1, 6):
        for m in range(1, 12):
            schedules = [ppsim.build("1f1b-overlap", devices=p, microbatches=m)] + [
                ppsim.build(
                    "interleaved-overlap", devices=p, microbatches=m, stages_per_device=v, order=order, grouping=g
                )
                for v in (1, 2, 3)
                for order in ("f_b", "b_f")
                for g in ("spread", *(["torch"] if m % max(1, m // p) == 0 else []))
            ]
            for schedule in schedules:
                schedule.validate()
                if m % 4 == 0:
                    ppsim.simulate(schedule, costs, transport="directed")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": "backward"}, "order='backward' is not known; use one of: f_b, b_f"),
        ({"microbatches": 3}, "microbatches=3 with devices=4.*use 4 microbatches"),
        ({"microbatches": 9}, "microbatches=9 with group_size=4.*use 8 or 12 microbatches"),
        ({"group_size": 2}, "group_size=2 with devices=4, microbatches=8.*use 4"),
    ],
)
def test_refused_sizes_name_the_rule_and_the_nearest_legal_values(options, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        ppsim.build("interleaved-overlap", **{"devices": 4, "microbatches": 8, **options})
