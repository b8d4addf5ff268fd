"""Combined 1F1B: its lists, and its slot priced by the two-stream order of the pieces of its layers."""

import math
from typing import Any

import pytest
from command_line import CONFIGS, LLAMA
from command_line import ppsim as command
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim.costs import LayerPieces, combined_costs, combined_slot
from ppsim.costs.combined_slot import layer_pieces

seconds = st.just(0.0) | st.floats(1e-9, 10)
layers = st.lists(st.builds(LayerPieces, seconds, seconds, seconds, seconds), min_size=1, max_size=4)
UNIT = LayerPieces(1, 1, 1, 1)


def computed(forward, backward):
    forward_seconds = sum(layer.attention + layer.mlp for layer in forward)
    return forward_seconds + sum(
        layer.attention_input_grad + layer.mlp_input_grad + layer.attention_weight_grad + layer.mlp_weight_grad
        for layer in backward
    )


def exchanged(forward, backward):
    return sum(layer.dispatch + layer.combine for layer in (*forward, *backward))


def test_one_device_runs_each_backward_beside_the_next_forward():
    schedule = ppsim.build("combined-1f1b", devices=1, microbatches=3, stages_per_device=1)
    assert schedule.orders() == [["0F0", "(0F1;0B0)OVERLAP_F_B", "(0F2;0B1)OVERLAP_F_B", "0B2"]]


def test_the_warm_up_is_one_forward_longer_than_interleaved_1f1bs():
    p, m, v = 4, 8, 2
    for r, order in enumerate(ppsim.build("combined-1f1b", devices=p, microbatches=m, stages_per_device=v).orders()):
        forwards = next(i for i, action in enumerate(order) if action.endswith("OVERLAP_F_B"))
        assert forwards == 2 * (p - r - 1) + (v - 1) * p + 1


def test_the_makespan_is_fill_and_drain_and_the_slots_between():
    p, m, v = 4, 8, 2
    costs = combined_costs([[UNIT] * 2] * (p * v))
    f, b, o = 8, 12, combined_slot([UNIT] * 2, [UNIT] * 2)
    run = ppsim.simulate(ppsim.build("combined-1f1b", devices=p, microbatches=m, stages_per_device=v), costs)
    assert run.makespan == (p - 1) * (f + b) + (p * (v - 1) + 1) * (f + b) + (m * v - p * (v - 1) - 1) * o


@pytest.mark.parametrize("delayed", [False, True])
def test_equal_pieces_hide_every_exchange(delayed):
    assert combined_slot([UNIT] * 3, [UNIT] * 3, delayed_weights=delayed) == computed([UNIT] * 3, [UNIT] * 3)


def test_a_long_combine_is_exposed_behind_the_first_attention():
    # combine_b 0-3 beside attention_f 0-1; mlp_b 3-5, mlp_f 5-6 beside dispatch_b 5-6, attention_b 6-8; combine_f 6-9.
    layer = LayerPieces(attention=1, mlp=1, dispatch=1, combine=3)
    assert combined_slot([layer], [layer]) == 9


def test_the_experts_forward_comes_before_the_backward_of_attention_and_so_does_its_combine():
    # combine_b, attention_f 0-1; mlp_b 1-2 and its weights 2-3; dispatch_f 1-2, dispatch_b 2-3.
    assert combined_slot([UNIT], [UNIT], delayed_weights=True) == 6
    # mlp_f 3-4, combine_f 4-7
    assert combined_slot([LayerPieces(1, 1, 1, 3)], [LayerPieces(1, 1, 1, 1)], delayed_weights=True) == 7


def test_delayed_weights_let_the_gradient_dispatch_start_earlier():
    # combine_b, attention_f 0-1; mlp_b 1-2, weights 2-3 beside dispatch_b 2-6; mlp_f 3-4; attention_b 6-7, weights 7-8.
    layer = LayerPieces(1, 1, dispatch=4, combine=1)
    dense = LayerPieces(1, 1)
    assert combined_slot([dense], [layer], delayed_weights=True) == 8
    # Without: mlp_b 1-3, dispatch_b 3-7, attention_b 7-9.
    assert combined_slot([dense], [layer]) == 9


@given(layers, layers, st.booleans())
def test_a_slot_lies_between_its_longer_stream_and_all_of_its_pieces(forward, backward, delayed):
    streams = computed(forward, backward), exchanged(forward, backward)
    slot = combined_slot(forward, backward, delayed_weights=delayed)
    assert max(streams) <= slot * (1 + 1e-9)
    assert slot <= sum(streams) * (1 + 1e-9)


@given(layers, layers)
def test_without_exchanges_a_slot_is_its_parts(forward, backward):
    def dense(stage):
        return [LayerPieces(layer.attention, layer.mlp) for layer in stage]

    assert combined_slot(dense(forward), dense(backward)) == pytest.approx(computed(forward, backward))


@given(st.lists(layers, min_size=1, max_size=3))
def test_costs_price_each_pair_of_stages(stages):
    costs: Any = combined_costs(stages, delayed_weights=True)
    assert costs.per == "stage"
    for s, forward in enumerate(stages):
        assert costs.forward[s] + costs.backward[s] == pytest.approx(
            computed(forward, forward) + exchanged(forward, forward)
        )
        for t, backward in enumerate(stages):
            assert costs.overlap[s][t] == combined_slot(forward, backward, delayed_weights=True)


@pytest.mark.parametrize("value", [-1, math.inf, "1", True])
def test_a_piece_is_a_finite_number_of_seconds(value):
    with pytest.raises(ppsim.CostError, match=r"mlp=.* must be a finite number of seconds of at least 0"):
        LayerPieces(1, value)


def test_no_stage_is_refused():
    with pytest.raises(ppsim.CostError, match="at least one stage"):
        combined_costs([])


def test_both_engines_agree_and_refusals_name_the_rule():
    costs = combined_costs([[UNIT], [LayerPieces(1, 2, 3, 4)], [UNIT] * 2, [UNIT]])
    for m in (2, 4, 6):
        schedule = ppsim.build("combined-1f1b", devices=2, microbatches=m)
        event, compiled = (
            ppsim.simulate(schedule, costs, transport="directed", engine=engine) for engine in ("event", "compiled")
        )
        assert event.end.tolist() == compiled.end.tolist()
    with pytest.raises(ppsim.BuildError, match="grouping='megatron' needs at least as many microbatches"):
        ppsim.build("combined-1f1b", devices=4, microbatches=3)


DEEPSEEK = CONFIGS / "deepseek-v3-2048xh800.yaml"


def derived(overlap, **changes) -> Any:
    case = ppsim.load_config(DEEPSEEK, overrides={"layout.overlap": overlap, **changes})
    return case.costs.table(case.build())


def test_derived_slots_on_two_streams_lie_between_hiding_everything_and_nothing():
    """16 stages of DeepSeek-V3: what a slot exposes is no less than the longer stream and no more than both."""
    ideal, streams = derived(True), derived("two-stream")
    nothing = streams.seconds[0][:, None] + streams.seconds[1][None, :]
    assert (streams.overlap >= ideal.overlap * (1 - 1e-12)).all()
    assert (streams.overlap <= nothing * (1 + 1e-12)).all()
    assert (streams.overlap[1:-1, 1:-1] < 0.9 * nothing[1:-1, 1:-1]).all()
    assert (streams.seconds == ideal.seconds).all()


def test_without_experts_nothing_is_exchanged_so_that_a_slot_is_its_parts_one_after_the_other():
    case = ppsim.load_config(LLAMA, overrides={"layout.overlap": "two-stream"})
    table: Any = case.costs.table(case.build())
    assert table.overlap == pytest.approx(table.seconds[0][:, None] + table.seconds[1][None, :])


def test_the_pieces_of_a_layer_are_all_of_its_seconds():
    costs: Any = ppsim.load_config(DEEPSEEK).costs
    block = costs.model.layers[10]
    forward, backward, _ = costs.exchange(block)
    seconds = {"forward": 3.0, "input_grad": 4.0, "weight_grad": 2.0,
               "forward_collectives": forward, "input_grad_collectives": backward}  # fmt: skip
    pieces = layer_pieces(costs, block, seconds)
    assert pieces.forward == pytest.approx(3 + forward)
    assert pieces.input_grad == pytest.approx(4 + backward)
    assert pieces.weight_grad == pytest.approx(2)
    assert pieces.dispatch == pieces.combine == pytest.approx(forward / 2)


def test_a_config_names_it_and_a_wrong_name_is_refused():
    outcome = command("simulate", DEEPSEEK, "--set", "layout.overlap=two-stream", "--json", "-")
    assert outcome.status == 0, outcome.err
    with pytest.raises(ppsim.ConfigError, match="must be true, false or two-stream"):
        ppsim.load_config(DEEPSEEK, overrides={"layout.overlap": "streams"})
