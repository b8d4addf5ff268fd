"""Chains of modules: stages with costs of their own for each microbatch, in any schedule and in searched ones."""

from typing import Any

import pytest
from timelines import actions

import ppsim
from ppsim.costs import Module, module_chain

IMAGES = [4, 0, 2, 2]


def chain(**others):
    encoder = Module(1, {"forward": 1, "backward": 2, "activation_bytes": 4}, microbatch_scale=IMAGES)
    backbone = Module(2, {"forward": 4, "backward": 8, "activation_bytes": 8})
    return module_chain([encoder, backbone], 4, **others)


def test_an_encoder_costs_what_its_microbatch_holds_and_the_backbone_the_same_for_each():
    run: Any = ppsim.simulate(ppsim.build("gpipe", devices=3, microbatches=4), chain(weight_bytes=0))
    assert actions(run)[0].startswith("0F0 0-2  0F1 2-2  0F2 2-3  0F3 3-4")
    assert actions(run)[1].startswith("1F0 2-4  1F1 4-6  1F2 6-8  1F3 8-10")
    assert run.peak_memory.tolist() == [16, 16, 16]


def test_chains_share_devices_and_a_search_orders_them():
    """Encoder and backbone of two stages each on the same two devices."""
    costs = module_chain(
        [Module(2, {"forward": 2, "backward": 4}, [3, 1, 1, 3] * 2), Module(2, {"forward": 6, "backward": 12})], 8
    )
    found = ppsim.build("auto", devices=2, microbatches=8, stages_per_device=2, placement=[0, 1, 0, 1], costs=costs)
    ordered = ppsim.simulate(found, costs)
    assert ordered.makespan < ppsim.simulate(ppsim.build("interleaved-1f1b", devices=2, microbatches=8), costs).makespan
    assert ordered.device_busy.sum() == pytest.approx(8 * 24)


def test_costs_are_of_an_average_microbatch():
    run = ppsim.simulate(ppsim.build("1f1b", devices=1, microbatches=2),
                         module_chain([Module(1, {"forward": 1, "backward": 1}, [300, 100])], 2))  # fmt: skip
    assert actions(run) == ["0F0 0-1.5  0B0 1.5-3  0F1 3-3.5  0B1 3.5-4"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: module_chain([], 4), "at least one Module"),
        (lambda: Module(0, {"forward": 1}), "stages=0 must be"),
        (lambda: Module(1, {"latency": 1}), "'latency' is no cost of a module"),
        (lambda: Module(1, {"forward": -1}), "forward=-1"),
        (lambda: Module(1, {"forward": 1}, [-1]), "microbatch_scale"),
        (
            lambda: module_chain([Module(1, {"forward": 1}), Module(1, {"backward": 1})], 4),
            r"modules\[1\] gives backward",
        ),
        (lambda: module_chain([Module(1, {"forward": 1}, [1, 2])], 4), "lists 2 factors"),
    ],
)
def test_what_cannot_be_is_one_sentence(make, message):
    with pytest.raises(ppsim.CostError, match=message):
        make()
