"""Combined 1F1B: its lists, and its slot priced by the two-stream order of the pieces of its layers."""

from typing import Any

import numpy as np
import pytest
from command_line import CONFIGS, LLAMA
from command_line import ppsim as command
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim.costs import LayerPieces, combined_slot
from ppsim.costs.combined_slot import layer_pieces
from ppsim.costs.host_time import host_seconds

seconds = st.just(0.0) | st.floats(1e-9, 10)
layers = st.lists(st.builds(LayerPieces, *[seconds] * 7), min_size=1, max_size=4)
UNIT = LayerPieces(1, 1, 1, 1, 2, 2)


def combined_costs(stages):
    """Costs with the slot of each pair of stages, of which an F or a backward alone runs its pieces in a row."""
    return ppsim.Costs(
        forward=[sum(sum(layer[:4]) for layer in stage) for stage in stages],
        backward=[sum(sum(layer[2:]) for layer in stage) for stage in stages],
        overlap=[[combined_slot(one, other) for other in stages] for one in stages],
        per="stage",
    )


def computed(forward, backward):
    forward_seconds = sum(layer.attention + layer.host + layer.mlp for layer in forward)
    return forward_seconds + sum(layer.attention_backward + layer.mlp_backward for layer in backward)


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


def test_equal_pieces_hide_every_exchange():
    assert combined_slot([UNIT] * 3, [UNIT] * 3) == computed([UNIT] * 3, [UNIT] * 3)


def test_a_long_combine_is_exposed_behind_the_first_attention():
    # combine_b 0-3 beside attention_f 0-1; mlp_b 3-5, mlp_f 5-6 beside dispatch_b 5-6, attention_b 6-8; combine_f 6-9.
    layer = LayerPieces(1, 1, 1, 3, 2, 2)
    assert combined_slot([layer], [layer]) == 9


def test_a_long_dispatch_of_the_gradient_is_exposed_behind_the_weights_of_the_experts():
    # combine_b, attention_f 0-1; mlp_b 1-3, dispatch_b 3-7, attention_b 7-9.
    assert combined_slot([LayerPieces(1, 1, 0, 0, 2, 2)], [LayerPieces(1, 1, 4, 1, 2, 2)]) == 9


@given(layers, layers)
def test_a_slot_lies_between_its_longer_stream_and_all_of_its_pieces(forward, backward):
    streams = computed(forward, backward), exchanged(forward, backward)
    slot = combined_slot(forward, backward)
    assert max(streams) <= slot * (1 + 1e-9)
    assert slot <= sum(streams) * (1 + 1e-9)


@given(layers, layers)
def test_without_exchanges_a_slot_is_its_parts(forward, backward):
    def dense(stage):
        return [layer._replace(dispatch=0.0, combine=0.0) for layer in stage]

    assert combined_slot(dense(forward), dense(backward)) == pytest.approx(computed(forward, backward))


def test_both_engines_agree_and_refusals_name_the_rule():
    costs = combined_costs([[UNIT], [LayerPieces(1, 2, 3, 4, 2, 4)], [UNIT] * 2, [UNIT]])
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


def waiting(costs, layer):
    return host_seconds(costs, layer)[0] * (layer.expert_parameters > 0)


def test_derived_slots_on_two_streams_lie_between_hiding_everything_and_nothing():
    """16 stages of DeepSeek-V3: a slot lasts no less than the longer stream and no more than both with F's host."""
    costs: Any = ppsim.load_config(DEEPSEEK).costs
    waits = [sum(waiting(costs, layer) for layer in layers) for layers in costs.stage_layers(16)]
    ideal, streams = derived(True), derived("two-stream")
    nothing = streams.seconds[0][:, None] + streams.seconds[1][None, :]
    assert (streams.overlap >= ideal.overlap * (1 - 1e-12)).all()
    assert (streams.overlap <= nothing * (1 + 1e-12) + np.array(waits)[:, None]).all()
    assert (streams.overlap[1:-1, 1:-1] < 0.9 * nothing[1:-1, 1:-1]).all()
    assert (streams.seconds == ideal.seconds).all()


def test_without_experts_nothing_is_exchanged_so_that_a_slot_is_its_parts_one_after_the_other():
    case = ppsim.load_config(LLAMA, overrides={"layout.overlap": "two-stream", "layout.cuda_graphs": True})
    table: Any = case.costs.table(case.build())
    assert table.overlap == pytest.approx(table.seconds[0][:, None] + table.seconds[1][None, :])


def test_the_pieces_of_a_layer_are_all_of_its_seconds():
    costs: Any = ppsim.load_config(DEEPSEEK).costs
    block = costs.model.layers[10]
    forward, backward, _ = costs.exchange(block)
    seconds = {"forward": 3.0, "input_grad": 4.0, "weight_grad": 2.0,
               "forward_collectives": forward, "input_grad_collectives": backward}  # fmt: skip
    pieces = layer_pieces(costs, block, seconds)
    assert sum(pieces[:4]) == pytest.approx(3 + forward)
    assert sum(pieces[2:6]) == pytest.approx(4 + backward + 2)
    assert pieces.dispatch == pieces.combine == pytest.approx(forward / 2)


def test_the_experts_of_a_forward_wait_for_their_host():
    graphs, started = (
        ppsim.load_config(DEEPSEEK, overrides={"layout.cuda_graphs": way, "layout.fused_experts": False}).costs
        for way in (True, False)
    )
    seconds = dict.fromkeys(("forward", "input_grad", "weight_grad"), 1.0)
    seconds |= dict.fromkeys(("forward_collectives", "input_grad_collectives"), 0.0)
    block = started.model.layers[10]
    pieces = [layer_pieces(costs, block, seconds) for costs in (graphs, started)]
    assert [one.host for one in pieces] == [host_seconds(costs, block)[0] for costs in (graphs, started)]
    assert pieces[1].host > pieces[0].host


def test_a_config_names_it_and_a_wrong_name_is_refused():
    outcome = command("simulate", DEEPSEEK, "--set", "layout.overlap=two-stream", "--json", "-")
    assert outcome.status == 0, outcome.err
    with pytest.raises(ppsim.ConfigError, match="must be true, false or two-stream"):
        ppsim.load_config(DEEPSEEK, overrides={"layout.overlap": "streams"})
