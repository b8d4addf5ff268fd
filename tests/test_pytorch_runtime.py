"""Schedules of ours run through PyTorch's pipeline runtime and give a single process's gradients."""

import random

import pytest

import ppsim

pytest.importorskip("torch")

import torch
from pytorch_processes import Case, run, single_process
from pytorch_stages import multi_stage
from random_schedules import random_orders

CROSSED = [
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1", "0REDUCE_GRAD"],
    ["1RECV_F1", "1RECV_F0", "1F0", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1", "1REDUCE_GRAD"],
]
LOSSES_OUT_OF_ORDER = [["0F1", "0F0", "0I0", "0W0", "0I1", "0W1"], ["1F1", "1F0", "1I0", "1W0", "1I1", "1W1"]]


def as_case(name, schedule, folder, form="compute_comms"):
    """A schedule or program written where the processes find it."""
    path = folder / f"{name}.csv"
    schedule.to_csv(path)
    held = schedule.schedule.holdings if isinstance(schedule, ppsim.Program) else schedule.holdings
    stages_of = tuple(tuple(int(s) for d, s in held if d == device) for device in range(schedule.devices))
    return Case(name, str(path), form, stages_of, schedule.num_stages, schedule.microbatches)


def equal(found, expected):
    """Whether the gradients agree; a gradient that never came is None."""
    return all(
        one is not None and torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        for stage, gradients in expected.items()
        for one, other in zip(found[stage], gradients, strict=True)
    )


def random_schedule(devices):
    """The first random schedule with this many devices that PyTorch can run."""
    for seed in range(10_000):
        chance = random.Random(seed)  # noqa: S311 - chooses a schedule, keeps no secret
        schedule = ppsim.Schedule.from_orders(random_orders(chance, fused=False, bidirectional=False))
        if schedule.devices == devices and schedule.microbatches == 4 and schedule.num_stages == 6:
            try:
                schedule.check(pytorch=True)
            except ppsim.ScheduleError:
                continue
            return schedule
    raise AssertionError("no such schedule in 10,000")


OPTIONS = {"dualpipe-v": {"drain": "whole"}, "looped-bfs": {"memory": "balanced"}}  # PyTorch's own lists have others


def runs(devices, names, folder):
    """Each family as compute only, and as programs with receives early and just in time."""
    cases = []
    for name in names:
        schedule = ppsim.build(name, devices=devices, microbatches=2 * devices, **OPTIONS.get(name, {}))
        cases.append(as_case(f"{name}-compute", schedule, folder, "compute_only"))
        for receive in ("early", "just-in-time"):
            program = ppsim.lower(schedule, sharded=True, receive=receive)
            program.check("rank" if receive == "early" else None, pytorch=True)
            cases.append(as_case(f"{name}-{receive}", program, folder))
    cases.append(as_case("random", ppsim.lower(random_schedule(devices), sharded=True), folder))
    return cases


def check(cases, found):
    for case in cases:
        assert equal(found[case.name], single_process(case.stages, case.microbatches)), case.name


def faulty_programs():
    """Programs that PyTorch runs without an error to wrong gradients, and what the checker says of each."""
    deferred = multi_stage("ScheduleZBVZeroBubble", 2, 4, 2, defer_pp_recv=True).pipeline_order_with_comms
    return {
        "crossed": (ppsim.Schedule.from_orders(CROSSED), "PyTorch would hand over the wrong tensor"),
        "by-pytorch": (
            ppsim.Schedule.from_orders([deferred[rank] for rank in range(2)]),
            "PyTorch would hand over the wrong tensor",
        ),
        "losses": (ppsim.lower(ppsim.Schedule.from_orders(LOSSES_OUT_OF_ORDER), sharded=True), "from the wrong losses"),
        "undivided": (ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=4)), "REDUCE_GRAD is missing"),
    }


def test_two_processes_give_a_single_processs_gradients_and_the_checker_tells_where_they_would_not(tmp_path):
    cases = runs(2, ("1f1b", "zb-h1", "zb-v", "dualpipe-v"), tmp_path)
    faulty = faulty_programs()
    faulty_cases = [as_case(name, program, tmp_path) for name, (program, _) in faulty.items()]
    found = run(2, [*cases, *faulty_cases], tmp_path)
    check(cases, found)
    for case, (program, fault) in zip(faulty_cases, faulty.values(), strict=True):
        assert not equal(found[case.name], single_process(case.stages, case.microbatches)), case.name
        with pytest.raises(ppsim.ScheduleError, match=fault):
            program.check(pytorch=True)
    undivided = {stage: [4 * gradient for gradient in own] for stage, own in single_process(2, 4).items()}
    assert equal(found["undivided"], undivided)


def test_four_processes_give_a_single_processs_gradients(tmp_path):
    cases = runs(4, ("1f1b", "zb-v", "looped-bfs"), tmp_path)
    check(cases, run(4, cases, tmp_path))


def found_by_search(folder):
    """Schedules that `auto` makes for uneven stages under a limit: one stage a device, and a V."""
    for name, v in (("one", 1), ("v", 2)):
        costs = ppsim.Costs(forward=[1.0, 1.5] * (2 * v), backward=2.2, latency=0.1)
        options = {"placement": name, "stages_per_device": v, "costs": costs, "memory_limit": 2.5, "rounds": 2}
        program = ppsim.lower(ppsim.build("auto", devices=4, microbatches=8, **options), sharded=True)
        program.check("rank", pytorch=True)
        yield as_case(f"auto-{name}", program, folder)


def test_schedules_found_by_search_give_a_single_processs_gradients(tmp_path):
    cases = list(found_by_search(tmp_path))
    check(cases, run(4, cases, tmp_path))
