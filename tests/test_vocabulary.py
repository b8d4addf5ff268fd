"""Vocabulary parallelism: S, T and their collectives, worked out by hand; the family's closed forms."""

import tracemalloc

import numpy as np
import pytest
from command_line import LLAMA
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import vocabulary_orders

import ppsim
from ppsim.lowering import TRANSPORTS

TWO_REDUCTIONS = [
    ["0F0", "0F1", "0S0", "0T0", "0S1", "0T1", "0B0", "0B1"],
    ["1F0", "1S0", "1F1", "1T0", "1S1", "1B0", "1T1", "1B1"],
]
ONE_REDUCTION = [["0F0", "0F1", "0S0", "0S1", "0B0", "0B1"], ["1F0", "1S0", "1F1", "1B0", "1S1", "1B1"]]


def run_of(orders, transport="async", **costs):
    given = {"forward": 1, "backward": 2, "vocabulary_forward": 0.5, "vocabulary_backward": 0.25} | costs
    return ppsim.simulate(ppsim.Schedule.from_orders(orders), ppsim.Costs(**given), transport=transport, engine="event")


def starts(run):
    labels = [label for order in run.schedule.orders() for label in order]
    return dict(zip(labels, run.start.tolist(), strict=True))


def test_lists_with_s_and_t_come_back_as_written_and_are_kept_by_lowering(tmp_path):
    schedule = ppsim.Schedule.from_orders(TWO_REDUCTIONS)
    schedule.to_csv(tmp_path / "vocabulary.csv")
    assert ppsim.Schedule.from_csv(tmp_path / "vocabulary.csv").orders() == TWO_REDUCTIONS
    lowered = ppsim.lower(schedule, sharded=True).orders()
    assert [[text for text in order if text in TWO_REDUCTIONS[i]] for i, order in enumerate(lowered)] == TWO_REDUCTIONS


def test_t_waits_for_the_statistics_of_all_parts_and_the_last_backward_for_all_gradients():
    run = run_of(TWO_REDUCTIONS, vocabulary_reduce=0.25)
    at = starts(run)
    # The output of 1F0 is there at 2: both S0 run to 2.5, their reduction to 2.75.
    assert (at["0S0"], at["1S0"], at["0T0"]) == (2, 2, 2.75)
    # Device 1 is in 1F1 until 3.5; its 1T0 ends at 3.75, the gradients are reduced at 4: 1S1 hides 0.25 of it.
    assert (at["1F1"], at["1T0"], at["1S1"], at["1B0"]) == (2.5, 3.5, 3.75, 4.25)
    # 0S1 waits for 1F1 (3.5); T1 of both for S1 of device 1 (4.25) and a reduction.
    assert (at["0S1"], at["0T1"], at["1T1"], at["1B1"]) == (3.5, 4.5, 6.25, 6.75)
    # In device 1's list stand 1F0, 1S0, 1F1, 1T0, 1S1, 1T1: a broadcast, statistics, a broadcast, a gradient ...
    assert run.barrier_start.tolist() == [2, 2.5, 3.5, 3.75, 4.25, 6.5]
    assert (run.barrier_end - run.barrier_start).tolist() == [0, 0.25, 0, 0.25, 0.25, 0.25]


def test_statistics_may_take_another_time_than_the_gradient():
    run = run_of(TWO_REDUCTIONS, vocabulary_reduce=0.25, vocabulary_statistics=0.125)
    assert (run.barrier_end - run.barrier_start).tolist() == [0, 0.125, 0, 0.25, 0.125, 0.25]
    assert run_of(ONE_REDUCTION, vocabulary_reduce=0.25, vocabulary_statistics=0.125).barrier_end[1] == 2.75 + 0.25


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_collectives_of_one_sender_run_one_after_the_other_in_its_order(engine):
    orders = [["0F0", "0F1", "0S0", "0S1", "0B1", "0B0"], ["1F0", "1F1", "1S0", "1S1", "1B1", "1B0"]]
    costs = ppsim.Costs(forward=1, backward=2, vocabulary_forward=0.75, vocabulary_reduce=3)
    run = ppsim.simulate(ppsim.Schedule.from_orders(orders), costs, engine=engine)
    # 1S0 ends at 3.75, 1S1 at 4.5: the second reduction waits from 4.5 to 6.75 for the first, and 1B1 for both.
    assert run.barrier_start.tolist() == [2, 3, 3.75, 6.75]
    assert (starts(run)["1B1"], starts(run)["1B0"]) == (9.75, 11.75)
    causes = run.ledger()
    assert (causes["queue"][1], causes["transfer"][1]) == (2.25, 3)


def test_without_t_an_s_lasts_both_and_the_backward_waits_for_its_reduction():
    run = run_of(ONE_REDUCTION, vocabulary_reduce=0.5)
    at = starts(run)
    assert run.end[list(at).index("1S0")] - at["1S0"] == 0.75
    assert (at["1F1"], at["1B0"]) == (2.75, 3.75)  # the reduction from 2.75 to 3.25 is hidden by 1F1
    assert at["1B1"] == 5.75 + 0.75 + 0.5  # the last one is not


def test_the_broadcast_costs_a_transfer_to_the_other_devices():
    run = run_of(ONE_REDUCTION, latency=0.25, transfer_bytes=1.0, bandwidth=4.0)
    at = starts(run)
    assert at["1F0"] == 1.5
    assert (at["0S0"], at["1S0"]) == (3, 2.5)  # the sender has its output at once


def test_a_device_alone_reduces_nothing():
    run = run_of([["0F0", "0S0", "0T0", "0B0"]], vocabulary_reduce=9.0)
    assert run.makespan == 3.75


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ([["0F0", "0S0", "0B0"], ["1F0", "1S0", "1T0", "1B0"]], "0T0 is missing: stage 0 holds a part"),
        ([["0F0", "0F1", "0S0", "0B0", "0B1"], ["1F0", "1F1", "1S0", "1S1", "1B0", "1B1"]], "0S1 is missing"),
        ([["0F0", "0S0", "0S0", "0B0"]], "0S0 appears twice"),
        ([["0F0", "0T0", "0S0", "0B0"]], "0T0 (row 1, column 2) comes before 0S0 (row 1, column 3)"),
        ([["0S0", "0F0", "0B0"]], "0S0 (row 1, column 1) comes before 0F0 (row 1, column 2): S needs the"),
        (
            [["0F0", "0F1", "0S1", "0S0", "0B0", "0B1"], ["1F0", "1F1", "1S0", "1S1", "1B0", "1B1"]],
            "0S1 (row 1, column 3) comes before 0S0 (row 1, column 4), and on the device that sends their "
            "input it is the other way round",
        ),
        ([["0F0", "0B0", "0S0"]], "device 0 waits at 0B0 for 0S0 of device 0, which comes after 0B0"),
        (
            [["0F0", "0S0", "0T0", "0B0"], ["1F0", "1S0", "1B0", "1T0"]],
            "device 1 waits at 1B0 for 1T0 of device 1, which comes after 1B0",
        ),
        (
            [["0F0", "0B0", "0S0"], ["1F0", "1S0", "1B0"]],
            "device 1 waits at 1B0 for 0S0 of device 0, which comes after 0B0",
        ),
        (  # device 1's 0S1 needs the broadcast of 2F1, which the sender makes behind the gradient of microbatch 0
            [
                ["2F0", "2S0", "2T0", "2F1", "2B0", "2S1", "2T1", "2B1"],
                [
                    "0F0",
                    "0F1",
                    "1F0",
                    "1F1",
                    "1S0",
                    "0S0",
                    "1T0",
                    "0S1",
                    "0T0",
                    "1S1",
                    "1B0",
                    "0B0",
                    "0T1",
                    "1T1",
                    "1B1",
                    "0B1",
                ],
            ],
            "device 1 waits at 0S1 for 0T0 of device 1, which comes after 0S1 (its collective runs before the one "
            "for 0S1)",
        ),
        ([["0F0", "1S0", "0B0"], ["1F0", "1B0"]], "all actions of one stage and microbatch run on one device"),
    ],
)
def test_a_fault_is_a_sentence_with_the_rule(orders, sentence):
    with pytest.raises(ppsim.ScheduleError) as error:
        ppsim.Schedule.from_orders(orders).validate()
    assert sentence in str(error.value)


def test_pytorch_is_said_to_know_no_s_and_no_t():
    with pytest.raises(ppsim.ScheduleError, match=r"(?s)knows no S.*knows no T"):
        ppsim.lower(ppsim.Schedule.from_orders(TWO_REDUCTIONS), sharded=True).check(pytorch=True)


def test_what_waits_for_a_collective_waits_for_a_transfer_and_before_it_for_the_slowest_part():
    run = run_of(TWO_REDUCTIONS, vocabulary_reduce=0.25)
    causes = run.ledger()
    assert np.allclose(causes.total, run.device_idle)
    # Device 0: 2.5-2.75 the statistics of microbatch 0; 4.25-4.5 those of microbatch 1.
    assert causes["transfer"].tolist() == [0.5, 0.25]
    assert causes["overhead"].tolist() == [0, 0]
    assert (run.slack() >= 0).all()
    assert run.sensitivities().kind["transfer"] >= 1


@settings(deadline=None, max_examples=60)
@given(random=st.randoms(use_true_random=False), reduce=st.sampled_from([0.0, 0.5, 3.0]))
def test_ledger_and_bounds_hold_with_collectives(random, reduce):
    run = run_of(vocabulary_orders(random), latency=0.5, vocabulary_reduce=reduce)
    assert np.allclose(run.ledger().total, run.device_idle)
    assert np.allclose(run.ledger()["overhead"], 0)
    assert run.lower_bound().seconds <= run.makespan
    assert run.slack().min() == pytest.approx(0, abs=1e-9)


def test_a_stream_that_is_never_idle_between_its_collectives_bounds_the_step():
    # The first S ends at 2.5, then 16 reductions of 5 run one after the other; 1B and 0B follow the last.
    schedule = ppsim.build("vocab-1f1b", devices=2, microbatches=16, variant=2)
    costs = ppsim.Costs(forward=1, backward=2, vocabulary_forward=0.5, vocabulary_reduce=5)
    bound = ppsim.simulate(schedule, costs).lower_bound()
    assert bound.bounds["collectives"] == 2.5 + 16 * 5 + 2 + 2
    assert bound.which == "collectives"


def test_variants_are_told_apart_by_where_t_stands():
    orders = {
        variant: ppsim.build("vocab-1f1b", devices=2, microbatches=4, variant=variant).orders()
        for variant in (1, 2, "interlaced")
    }
    assert orders[1][1] == [
        "1F0",
        "1S0",
        "1F1",
        "1T0",
        "1S1",
        "1F2",
        "1B0",
        "1T1",
        "1S2",
        "1F3",
        "1B1",
        "1T2",
        "1S3",
        "1B2",
        "1T3",
        "1B3",
    ]
    assert orders[2][1] == ["1F0", "1S0", "1F1", "1B0", "1S1", "1F2", "1B1", "1S2", "1F3", "1B2", "1S3", "1B3"]
    assert orders["interlaced"][1] == [
        "1F0",
        "1F1",
        "1S0",
        "1T0",
        "1B0",
        "1S1",
        "1T1",
        "1B1",
        "1F2",
        "1S2",
        "1T2",
        "1B2",
        "1F3",
        "1S3",
        "1T3",
        "1B3",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"variant": 3}, "variant='3' is not known; use one of: 1, 2, interlaced"),
        ({"forward": 2.0, "backward": 1.0}, "backward=1 is shorter than forward=2"),
        ({"forward": 0.0}, "forward=0.0 must be seconds above 0"),
        ({"backward": "long"}, "backward='long' must be seconds above 0"),
    ],
)
def test_a_refused_option_is_a_sentence(options, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence.replace("(", "\\(")):
        ppsim.build("vocab-1f1b", devices=4, microbatches=8, **options)


LLAMA_ON_8 = ppsim.load_config(LLAMA).changed(
    {"schedule.devices": 8, "hardware.gpus": None, "batch": None, "layout.gradient_buffers": False}
)


def of_llama(name, **options):
    return LLAMA_ON_8.changed({"schedule.name": name, "schedule.options": options}).simulate()


def test_from_shapes_the_output_layer_leaves_the_last_stage_and_its_parts_take_as_long():
    whole, parts = of_llama("1f1b"), of_llama("vocab-1f1b")
    assert parts.table.seconds[:, -1] == pytest.approx(parts.table.seconds[:, 1])
    gone = whole.table.seconds[:2, -1] - parts.table.seconds[:2, -1]
    assert 8 * parts.table.vocabulary_seconds[:, 0] == pytest.approx(gone, rel=0.1)  # smaller products, lower rates
    assert parts.makespan < 0.8 * whole.makespan


def test_from_shapes_the_weights_of_embedding_and_output_layer_are_cut_and_logits_held_from_s_to_t():
    whole, parts = of_llama("1f1b"), of_llama("vocab-1f1b")
    assert parts.static_memory.sum() == pytest.approx(whole.static_memory.sum(), rel=1e-3)
    assert parts.static_memory.sum(axis=0) == pytest.approx(parts.static_memory.sum(axis=0).mean(), rel=1e-3)
    table, last = parts.table, len(parts.peak_memory) - 1
    held = 3 * table.activation_bytes[last] + table.vocabulary_bytes[last]
    assert parts.peak_memory[last] == pytest.approx(parts.static_memory[:, last].sum() + held, rel=0.05)


def test_given_seconds_of_s_and_t_replace_those_from_shapes():
    costs = {"vocabulary_forward": 0.002, "vocabulary_backward": 0.003, "vocabulary_reduce": 0.001}
    table = LLAMA_ON_8.changed({"schedule.name": "vocab-1f1b", "costs": costs}).simulate().table
    assert table.vocabulary_seconds[:, 0].tolist() == [0.002, 0.003]
    assert table.vocabulary_reduce_seconds == 0.001
    assert table.vocabulary_statistics_seconds is None


def test_from_shapes_three_numbers_a_token_are_reduced_for_t_and_with_the_gradient_where_there_is_none():
    two, one = of_llama("vocab-1f1b").table, of_llama("vocab-1f1b", variant=2).table
    assert 0 < two.vocabulary_statistics_seconds < two.vocabulary_reduce_seconds
    both = two.vocabulary_statistics_seconds + two.vocabulary_reduce_seconds
    assert one.vocabulary_reduce_seconds == pytest.approx(both)


def test_a_ready_device_runs_a_forward_while_a_reduction_is_under_way():
    orders = [["0F0", "0S0", "0T0", "0F1", "0S1", "0T1", "0B0", "0B1"]]
    orders.append([action.replace("0", "1", 1) for action in orders[0]])
    costs = ppsim.Costs(forward=1, backward=2, vocabulary_forward=1, vocabulary_backward=1, vocabulary_reduce=1)
    waiting = ppsim.simulate(ppsim.Schedule.from_orders(orders), costs)
    ready = ppsim.simulate(ppsim.Schedule.from_orders(orders), costs, dispatch="ready", memory_limit=2)
    assert ready.schedule.orders()[0][:3] == ["0F0", "0F1", "0S0"]
    assert ready.makespan < waiting.makespan


def test_a_deadlock_of_queues_is_told_past_the_device_that_waits_for_a_collective():
    program = ppsim.Program.from_orders(
        [
            ["0F0", "0SEND_F0", "0RECV_B0", "0F1", "0SEND_F1", "0S0", "0S1", "0B0", "0RECV_B1", "0B1"],
            ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1S0", "1B0", "1SEND_B0", "1S1", "1B1", "1SEND_B1"],
        ]
    )
    cycles = []
    for engine in ("event", "compiled"):
        with pytest.raises(ppsim.DeadlockError) as error:
            ppsim.simulate(program, transport="rank", engine=engine)
        cycles.append(error.value.cycle)
    with pytest.raises(ppsim.DeadlockError) as error:
        program.check("rank")
    assert cycles == [error.value.cycle] * 2
    assert cycles[0][0].startswith("device 1 waits at 1F1 for 0SEND_F1")
    program.check("directed")


@settings(deadline=None, max_examples=60)
@given(random=st.randoms(use_true_random=False), transport=st.sampled_from(TRANSPORTS))
def test_lists_with_collectives_that_are_valid_run_under_every_transport(random, transport):
    schedule = ppsim.Schedule.from_orders(vocabulary_orders(random))
    schedule.check(transport)
    assert ppsim.simulate(schedule, transport=transport).makespan > 0


@pytest.mark.parametrize("wrong", ["0S2147483646", "1T2147483646"])
def test_a_microbatch_that_no_list_could_hold_is_refused_before_any_table_is_made(wrong):
    orders = [[wrong, "0F0", "0S0", "0B0"], ["1F0", "1S0", "1B0"]]
    tracemalloc.start()
    with pytest.raises(ppsim.ScheduleError, match=f"{wrong}.* names microbatch 2147483646"):
        ppsim.Schedule.from_orders(orders).validate()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000  # bytes
