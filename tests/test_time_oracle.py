"""Random programs with everything beside compute actions against the rules of time, walked moment by moment."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import FEATURES, Case, Given, random_table
from random_schedules import random_orders, vocabulary_orders
from time_oracle import Choosers, Moments, World, carried, parts_of

import ppsim
from ppsim.actions import Kind
from ppsim.lowering import TRANSPORTS

PROGRAMS = [one for one in FEATURES["program"] if one]


# Levels of `random_runs.FEATURES` that the oracle knows; it takes the others as drawn.
COVERED = {
    "lists": "random", "slices": 1, "iterations": 1, "evicted": False, "seconds": "quarters",
    "scale": None, "overhead": False, "messages": False, "jitter": None, "dispatch": "list", "failed": False,
}  # fmt: skip


def of_table(table, lists):
    """The same costs as plain functions."""
    again = {part[1:] for cells in lists for cell in cells for part in parts_of(cell) if part[0] == "R"}
    split = any(part[0] == "T" for cells in lists for cell in cells for part in parts_of(cell))

    def seconds(kind, stage):
        if kind in "ST":
            parts = np.zeros(2) if table.vocabulary_seconds is None else table.vocabulary_seconds[:, stage]
            return parts["ST".index(kind)] if split else parts.sum()
        if kind == "R":
            return (table.seconds[Kind.F] if table.recompute_seconds is None else table.recompute_seconds)[stage]
        return table.seconds[Kind[kind], stage]

    def collective(what, sender, holders, last):
        if what == "send":
            return max([0.0, *(transfer(sender, one, "F", last) for one in holders if one != sender)])
        own = what == "reduce of S" and split and table.vocabulary_statistics_seconds is not None
        seconds = table.vocabulary_statistics_seconds if own else table.vocabulary_reduce_seconds
        last_one = what == ("reduce of T" if split else "reduce of S")
        return seconds if len({*holders, *[sender] * last_one}) > 1 else 0.0

    def copied(stage, microbatch):  # an R leaves only the stored input to copy
        given = [column for column in (table.offload_bytes, table.activation_bytes) if column is not None]
        stored = 0.0 if table.input_fraction is None else table.input_fraction[stage]
        moved = (given[0][stage] if given else 0.0) * (stored if (stage, microbatch) in again else 1.0)
        return table.offload_latency + moved * table.offload_seconds_per_byte

    def transfer(sender, receiver, kind, stage):
        sent = table.transfer_bytes[int(kind == "B"), stage] * table.seconds_per_byte[sender, receiver]
        return table.latency[sender, receiver] + sent

    ways = table.link_ports
    return World(
        seconds=seconds,
        transfer=transfer,
        overlap=None if table.overlap is None else lambda first, second: table.overlap[first, second],
        ports=None
        if ways is None
        else lambda sender, receiver: [port for port in ways[sender, receiver].tolist() if port >= 0],
        capacity=[] if ways is None else table.port_capacity.tolist(),
        unshard=None if table.unshard_seconds is None else lambda stage: table.unshard_seconds[stage],
        reduce=None if table.reduce_seconds is None else lambda stage: table.reduce_seconds[stage],
        copy=copied,
        switch=table.offload_switch,
        collective=collective,
    )


def check(program, table, transport, optimizer):
    """Every time of a run is the oracle's, to the last bit; where the oracle stands still, the run is a deadlock."""
    lists = program.orders()
    oracle = Moments(lists, of_table(table, lists), transport)
    options = {"transport": transport, "optimizer": optimizer, "engine": "event"}
    if not oracle.run():
        with pytest.raises(ppsim.DeadlockError):
            ppsim.simulate(program, Given(table), **options)
        return
    run = ppsim.simulate(program, Given(table), **options)
    for row in range(len(run.schedule.kind)):
        action = parts_of(run.schedule.label(row))[0]
        assert (run.row_start[row], run.row_end[row]) == (oracle.start[action], oracle.end[action]), action
        if run.plan.remote[row]:
            transfer = carried(*action)
            times = run.transfer_start[row], run.transfer_end[row]
            assert times == (oracle.start[transfer], oracle.end[transfer]), transfer
    for kind, start, end in (("UNSHARD", run.times.unshard_start, run.times.unshard_end),
                             ("REDUCE_GRAD", run.times.reduce_start, run.times.reduce_end)):  # fmt: skip
        names = sorted(name for name in oracle.start if name[0] == kind)
        assert [oracle.start[name] for name in names] == start.tolist(), kind
        assert [oracle.end[name] for name in names] == end.tolist(), kind
    groups = [one for group in oracle.groups for one, _ in group]
    assert sorted(oracle.start[one] for one in groups) == sorted(run.barrier_start.tolist())
    assert sorted(oracle.end[one] for one in groups) == sorted(run.barrier_end.tolist())
    copies = [cell for cells in lists for cell in cells if "LOAD" in cell]
    assert [oracle.start[parts_of(cell)[0]] for cell in copies] == run.times.copy_start.tolist()
    assert [oracle.end[parts_of(cell)[0]] for cell in copies] == run.times.copy_end.tolist()
    if optimizer:
        known = table.optimizer_seconds is not None
        steps = oracle.steps(optimizer, lambda stage: table.optimizer_seconds[stage] if known else 0.0)
        assert list(zip(run.times.step_start.tolist(), run.times.step_end.tolist(), strict=True)) == steps


def try_one(random, transport):
    """Compare one random case with the oracle; return False if its lists cannot be lowered."""
    # The oracle knows collectives of one sender, and queues only what the lists post.
    one_way = {"bidirectional": False} if random.random() < 0.5 else {"vocabulary": False}
    posts = {} if transport == "async" else {"program": random.choice(PROGRAMS)}
    case = Case(random, **COVERED | one_way | posts, transport=transport)
    if transport != "async" and case.level["program"] is None:
        return False
    if case.table.offload_switch and case.table.offload_latency == 0:  # copies that take no time have no fixed turn
        return False
    check(case.program, case.table, transport, case.options["optimizer"])
    return True


@settings(deadline=None, max_examples=150)
@given(random=st.randoms(use_true_random=False), transport=st.sampled_from(TRANSPORTS))
def test_every_stream_queue_port_and_slot_follows_the_rules_of_time(random, transport):
    try_one(random, transport)


def choose_one(random):
    """One random schedule under dispatch "ready", with costs of its own, against the oracle."""
    vocabulary = random.random() < 0.3
    lists = vocabulary_orders(random) if vocabulary else random_orders(random, recompute=random.random() < 0.5)
    schedule = ppsim.Schedule.from_orders(lists)
    of_weight, stored = random.choice([0.0, 0.5, 1.0]), random.choice([0.0, 0.25])
    table = replace(
        random_table(schedule, random, slots=random.choice([None, "matrix"])),
        stage_share=np.ones(schedule.num_stages), weight_grad_fraction=np.full(schedule.num_stages, of_weight),
        input_fraction=np.full(schedule.num_stages, stored),
    )  # fmt: skip
    again = {part[1:] for cells in lists for cell in cells for part in parts_of(cell) if part[0] == "R"}

    def changes(part):
        kind, stage, microbatch = part
        short = stored if (stage, microbatch) in again else 1.0
        return {
            "F": (short, 0.0), "R": (1.0 - stored, 0.0), "B": (0.0, 1.0),
            "I": (0.0, 1.0 - of_weight), "W": (0.0, of_weight),
        }.get(kind, (0.0, 0.0))  # fmt: skip

    def adds(parts):
        return sum(changes(part)[0] for part in parts)

    def net(parts):
        return adds(parts) - sum(changes(part)[1] for part in parts)

    more = random.choice([None, 0.0, 1.0, 3.0])
    oracle = Choosers(lists, of_table(table, lists), adds, net)
    limit = None if more is None else [room + more for room in oracle.limit]
    oracle.limit = limit or oracle.limit
    ready = {"dispatch": "ready", "memory_limit": limit, "engine": "event"}
    if not oracle.run():
        with pytest.raises(ppsim.DeadlockError):
            ppsim.simulate(schedule, Given(table), **ready)
        return
    run = ppsim.simulate(schedule, Given(table), **ready)
    ran = [part for cells in oracle.order for parts in cells for part in parts]
    assert [parts_of(run.schedule.label(row))[0] for row in range(len(ran))] == ran
    assert run.row_start.tolist() == [oracle.moments.start[part] for part in ran]
    assert run.row_end.tolist() == [oracle.moments.end[part] for part in ran]


@settings(deadline=None, max_examples=40)
@given(random=st.randoms(use_true_random=False))
def test_devices_that_choose_take_the_first_that_is_ready_and_leaves_room(random):
    choose_one(random)
