"""The balanced partition against every partition: no other leaves the busiest device less to do within its memory."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ppsim.analysis import ScheduleSummary, memory_bound
from ppsim.config import ConfigSource
from ppsim.costs import DerivedCosts, Pieces, balanced, balanced_with, prediction_stages
from ppsim.search import balanced_within, pieces_of

PLACEMENTS = ([0], [0, 1], [0, 1, 2], [0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 1, 0])  # loop and V
SECONDS = some.integers(0, 6).map(float)


@some.composite
def cases(draw):
    """Pieces of whole seconds, a placement, and blocks that each device has room for."""
    pieces = Pieces(
        blocks=draw(some.integers(1, 7)), predictions=draw(some.integers(0, 2)), embedding=draw(SECONDS),
        block=draw(some.integers(1, 4)) * 1.0, prediction=draw(SECONDS), head=draw(SECONDS),
    )  # fmt: skip
    devices = draw(some.sampled_from(PLACEMENTS))
    room = draw(some.none() | some.lists(some.integers(0, 4), min_size=max(devices) + 1, max_size=max(devices) + 1))
    return pieces, devices, room


def every_partition(pieces, devices):
    """Blocks of each stage and the stage of the predictions: the last, or the one before it with no block behind."""
    stages = len(devices)
    for counts in itertools.product(range(pieces.blocks + 1), repeat=stages):
        if sum(counts) == pieces.blocks:
            yield counts, stages - 1
            if pieces.predictions and stages > 1 and not counts[-1]:
                yield counts, stages - 2


def by_device(devices, of_stage):
    """Sums over the stages of each device."""
    pairs = list(zip(devices, of_stage, strict=True))
    return [sum(value for device, value in pairs if device == own) for own in range(max(devices) + 1)]


def busiest(pieces, devices, counts, of_predictions):
    """Seconds of the device with most to do."""
    work = [count * pieces.block for count in counts]
    work[0] += pieces.embedding
    work[-1] += pieces.head
    work[of_predictions] += pieces.predictions * pieces.prediction
    return max(by_device(devices, work))


def test_of_equal_stages_the_first_get_the_blocks_that_are_left_or_the_last():
    pieces = Pieces(blocks=6, predictions=0, embedding=0.0, block=1.0, prediction=0.0, head=0.0)
    assert str(balanced(pieces, [0, 1, 0, 1])) == "Et*2|t*2|t|tL"
    assert str(balanced(pieces, [0, 1, 0, 1], late=True)) == "Et|t|t*2|t*2L"


@given(cases(), some.booleans())
def test_no_partition_leaves_the_busiest_device_less_to_do(case, late):
    pieces, devices, room = case
    if room is not None and sum(room) < pieces.blocks:
        room = None

    def suffices(end):
        return room is None or sum(room[device] for device in {*devices[: end + 1]}) >= pieces.blocks

    ends = filter(suffices, prediction_stages(pieces, len(devices)))
    found = min((balanced_with(pieces, devices, end, room, late) for end in ends), key=lambda one: one[0])
    stages = found[1].stages
    counts, predictions = [stage.count("t") for stage in stages], [stage.count("m") for stage in stages]
    assert (sum(counts), sum(predictions)) == (pieces.blocks, pieces.predictions)

    def has_room(counts):
        return all(held <= most for held, most in zip(by_device(devices, counts), room, strict=True))

    every = list(every_partition(pieces, devices))
    if room is not None:
        every = [one for one in every if has_room(one[0])]
        assert has_room(counts) or not every
    if every:
        found = busiest(pieces, devices, counts, predictions.index(max(predictions)) if any(predictions) else -1)
        assert found == min(busiest(pieces, devices, *one) for one in every)


MODEL = {"num_layers": 6, "hidden": 512, "heads": 8, "sequence": 1024, "ffn": 2048, "vocabulary": 40000}
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"}


@pytest.mark.parametrize("part", [0.85, 0.9, 0.95, 1.0, 1.2])
@pytest.mark.parametrize(("name", "devices", "stages"), [("1f1b", 3, 1), ("interleaved-1f1b", 2, 2), ("zb-v", 2, 2)])
def test_no_partition_within_the_memory_has_a_shorter_busiest_device(name, devices, stages, part):
    """Six blocks with embedding and head over one stage a device, and evenly over its two in loop and V."""
    section = {"name": name, "devices": devices, "microbatches": 8}
    section |= {"stages_per_device": stages} if name == "interleaved-1f1b" else {}
    layout = {"cuda_graphs": True}  # blocks as small as these wait for their host otherwise
    config = ConfigSource(
        {"model": MODEL, "hardware": HARDWARE, "layout": layout, "schedule": section}, "case"
    ).config()
    costs, summary = config.costs, ScheduleSummary.of(config.build())
    assert isinstance(costs, DerivedCosts)

    def held_with(text) -> Any:
        return memory_bound(summary, costs.with_partition(text).table(summary.actions))

    limit = float(held_with("even").max()) * part
    found = str(balanced_within(costs, summary, limit))

    def busy_and_held(text):
        table = costs.with_partition(text).table(summary.actions)
        device, stage = summary.actions.holdings.T
        seconds = [0.0] * devices
        for own, one in zip(device, stage, strict=True):
            seconds[own] += table.seconds[:2, one].sum()
        return max(seconds), held_with(text).max()

    device = summary.actions.holdings[:, 0][np.argsort(summary.actions.holdings[:, 1])].tolist()
    rooms = [room for room in itertools.product(range(7), repeat=devices) if sum(room) == 6]
    texts = [
        str(balanced_with(pieces_of(costs), device, len(device) - 1, room)[1]) for room in rooms
    ]  # with so many blocks on each device
    within = [busy for busy, held in map(busy_and_held, texts) if held <= limit]
    busy, held = busy_and_held(found)
    if within:
        assert held <= limit
        assert busy <= min(within) * 1.005  # an empty stage saves what the boundary of a stage takes


def every_text(blocks, stages):
    """The layout string of every cut of so many blocks between embedding and head."""
    for counts in itertools.product(range(blocks + 1), repeat=stages):
        if sum(counts) == blocks:
            texts = ["t" * count for count in counts]
            yield "|".join(["E" + texts[0], *texts[1:-1], texts[-1] + "L"])


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("name", "devices", "stages"), [("interleaved-1f1b", 2, 3), ("zb-v", 3, 2), ("hanayo", 2, 4), ("v-min", 2, 2)]
)
def test_where_any_cut_fits_into_the_memory_the_balanced_one_does(name, devices, stages, recompute):
    """Early stages of a device hold more microbatches, so that what fits may have more blocks on its later ones."""
    section = {"name": name, "devices": devices, "microbatches": 6}
    section |= {"stages_per_device": stages} if name == "interleaved-1f1b" else {}
    data = {"model": {**MODEL, "num_layers": 5}, "hardware": HARDWARE, "schedule": section}
    config = ConfigSource({**data, "layout": {"recompute": recompute, "gradient_buffers": False}}, "case").config()
    costs, summary = config.costs, ScheduleSummary.of(config.build())
    assert isinstance(costs, DerivedCosts)

    def held_with(text):
        bound: Any = memory_bound(summary, costs.with_partition(text).table(summary.actions))
        return float(bound.max())

    held = sorted(map(held_with, every_text(5, summary.actions.num_stages)))
    even = held_with(str(balanced_within(costs, summary, np.inf)))
    for limit in [one for one in held[:: max(1, len(held) // 12)] if one < even] or held[:1]:
        assert held_with(str(balanced_within(costs, summary, limit * (1 + 1e-6)))) <= limit * (1 + 1e-6)
