"""Per-device orders and lowered lists equal those of torch.distributed.pipelining, class by class and size by size."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import schedules

import ppsim

pytest.importorskip("torch")

from pytorch_stages import multi_stage, runtime, step_loop, texts
from torch.distributed.pipelining import schedules as torch_schedules

DEVICES = (1, 2, 3, 4, 5, 8)
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24)
MULTI_STAGE = {
    "looped-bfs": ("ScheduleLoopedBFS", {}, (1, 2, 3)),
    "interleaved-1f1b": ("ScheduleInterleaved1F1B", {"grouping": "torch"}, (1, 2, 3, 4)),
    "interleaved-zb": ("ScheduleInterleavedZeroBubble", {"grouping": "torch"}, (1, 2, 3)),
    "zb-v": ("ScheduleZBVZeroBubble", {}, (2,)),
    "dualpipe-v": ("ScheduleDualPipeV", {}, (2,)),
}
SINGLE_STAGE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}


def grid(sizes):
    return list(itertools.product(DEVICES, sizes))


@pytest.mark.parametrize(("name", "v"), [(name, v) for name, (_, _, stages) in MULTI_STAGE.items() for v in stages])
def test_orders_and_lowered_lists_equal_pytorchs(name, v):
    kind, options, _ = MULTI_STAGE[name]
    accepted = 0
    for p, m in grid(MICROBATCHES):
        try:
            theirs = multi_stage(kind, p, m, v)
        except ValueError:
            with pytest.raises(ppsim.BuildError):
                ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, **options)
            continue
        accepted += 1
        ours = ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, **options)
        assert ours.orders() == texts(theirs.pipeline_order), (p, m)
        assert ppsim.lower(ours, sharded=True).orders() == texts(theirs.pipeline_order_with_comms), (p, m)
    assert accepted >= 20


def is_crossed(lists):
    """Whether some pair of devices receives in another order than it sends."""
    faults = ()
    try:
        ppsim.Schedule.from_orders(lists).check()
    except ppsim.ScheduleError as error:
        faults = error.faults
    assert all("in the order in which they are sent" in fault for fault in faults)
    return bool(faults)


@pytest.mark.parametrize(("name", "v"), [(name, stages[-1]) for name, (_, _, stages) in MULTI_STAGE.items()])
def test_just_in_time_receives_equal_pytorchs_deferred_ones_except_where_those_are_crossed(name, v):
    kind, options, _ = MULTI_STAGE[name]
    crossed = []
    for p, m in itertools.product((1, 2, 3, 4), (2, 3, 4, 6, 8, 12)):
        try:
            theirs = texts(multi_stage(kind, p, m, v, defer_pp_recv=True).pipeline_order_with_comms)
        except ValueError:
            continue
        schedule = ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, **options)
        ours = ppsim.lower(schedule, sharded=True, receive="just-in-time")
        ours.check("directed", pytorch=True)
        if is_crossed(theirs):
            crossed.append((p, m))
        assert (ours.orders() == theirs) == ((p, m) not in crossed), (p, m)
    assert ((2, 3) in crossed) == (name in ("zb-v", "interleaved-zb"))


@pytest.mark.parametrize("name", SINGLE_STAGE)
def test_orders_equal_those_of_pytorchs_step_loop(name):
    for p, m in grid(MICROBATCHES):
        try:
            theirs = step_loop(SINGLE_STAGE[name], p, m)
        except ValueError:
            assert m < p  # PyTorch's 1F1B refuses fewer microbatches than stages; ours builds them
            continue
        ours = ppsim.build(name, devices=p, microbatches=m).orders()
        assert [[*row, f"{device}REDUCE_GRAD"] for device, row in enumerate(ours)] == theirs, (p, m)


def test_pytorchs_picture_of_its_1f1b_is_wrong_where_its_loop_is_right():
    stage = torch_schedules.Schedule1F1B(multi_stage("ScheduleLoopedBFS", 4, 8, 1)._stages[0], 8)
    picture = texts(stage.pipeline_order)
    ours = ppsim.build("1f1b", devices=4, microbatches=8).orders()
    assert picture[3][:4] == ["3F1", "3B0", "3F2", "3B1"]
    assert ours[3][:4] == ["3F0", "3B0", "3F1", "3B1"]
    assert [row[:-1] for row in picture[:3]] == ours[:3]


@pytest.mark.parametrize("name", [*SINGLE_STAGE, "zb-h1", "zb-h2", "v-half", "v-min", "hanayo", "1f1b-overlap"])
def test_lowered_lists_of_schedules_that_pytorch_does_not_have_equal_what_it_makes_of_them(name, tmp_path):
    for p, m in ((2, 4), (4, 8), (4, 11)):
        schedule = ppsim.build(name, devices=p, microbatches=m)
        schedule.to_csv(tmp_path / "schedule.csv")
        loaded = runtime(schedule)
        loaded._load_csv(str(tmp_path / "schedule.csv"))
        assert ppsim.lower(schedule, sharded=True).orders() == texts(loaded.pipeline_order_with_comms)


def pytorch_lists(schedule, sharded, deferred, limit=3):
    """What PyTorch's lowering steps make of a schedule, or None where they find no order."""
    stage_to_rank = {int(stage): int(device) for device, stage in schedule.holdings}.__getitem__
    lists = {}
    for rank, row in enumerate(schedule.orders()):
        lists[rank] = [torch_schedules._Action.from_str(cell) for cell in row]
        if sharded:
            gathered = torch_schedules._add_unshard_reshard(lists[rank], limit)
            lists[rank] = torch_schedules._add_reduce_grad(gathered, schedule.microbatches)
    try:
        lists = torch_schedules._add_send_recv(lists, stage_to_rank, schedule.num_stages)
    except AssertionError:
        return None
    return texts(torch_schedules._defer_recv_ops(lists, stage_to_rank) if deferred else lists)


@settings(deadline=None, max_examples=100)
@given(schedule=schedules(bidirectional=False), limit=st.integers(0, 5), deferred=st.booleans())
def test_random_schedules_are_lowered_to_pytorchs_lists(schedule, limit, deferred):
    theirs = pytorch_lists(schedule, limit > 0, deferred, limit)
    options = {"receive": "just-in-time" if deferred else "early"}
    if limit:
        options |= {"sharded": True, "max_active_stages": limit}
    if theirs is None:
        with pytest.raises(ppsim.DeadlockError):
            ppsim.lower(schedule, **options)
        return
    ours = ppsim.lower(schedule, **options)
    ours.check()
    assert ours.orders() == theirs or (deferred and is_crossed(theirs))
