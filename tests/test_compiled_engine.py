"""The compiled engine against the event model: the same timelines bit for bit, the same deadlocks."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ppsim
import ppsim.base.compiling
from ppsim.engines import run_plan
from ppsim.lowering import TRANSPORTS
from ppsim.plan import make_plan

SEARCHED = ("zb-1p", "zb-2p", "zb-auto")


def outcome(schedule, costs, transport, engine):
    """The times of a run, or the deadlock's text."""
    try:
        run = ppsim.simulate(schedule, costs, transport=transport, engine=engine)
    except ppsim.DeadlockError as error:
        return str(error)
    assert run.engine == engine
    return run.times


def assert_equal_times(expected, found):
    for name in expected._fields:
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name


def assert_equal_bits(schedule, costs, transport):
    event, compiled = (outcome(schedule, costs, transport, engine) for engine in ("event", "compiled"))
    if isinstance(event, str):
        assert compiled == event
    else:
        assert_equal_times(event, compiled)


def test_when_devices_start_is_known_before_all_rows_are():
    run = ppsim.simulate(
        ppsim.build("dualpipe", devices=4, microbatches=8), ppsim.Costs(latency=0.5), engine="compiled"
    )
    assert run.device_start.tolist() == [
        0.0,
        1.5,
        1.5,
        0.0,
    ]  # both ends begin; a forward and a transfer later the others


def in_random_order(schedule, random):
    """The actions of a schedule on the devices where they run, in an order in which they could run one by one."""
    plain = [
        [part for action in schedule.actions(device) for part in action.parts or (action,)]
        for device in range(schedule.devices)
    ]
    done, orders = set(), [[] for _ in plain]
    while any(plain):
        ready = [
            (device, index)
            for device, actions in enumerate(plain)
            for index, action in enumerate(actions)
            if _inputs(action, schedule.num_stages).issubset(done)
        ]
        device, index = random.choice(ready)
        action = plain[device].pop(index)
        done |= _results(action)
        orders[device].append(str(action))
    return orders


def _inputs(action, stages):
    kind, stage, microbatch = action.kind.name, action.stage, action.microbatch
    if kind == "F":
        return {("F", stage - 1, microbatch)} if stage else set()
    if kind == "W":
        return {("I", stage, microbatch)}
    return {("F", stage, microbatch)} | ({("G", stage + 1, microbatch)} if stage + 1 < stages else set())


def _results(action):
    kind, stage, microbatch = action.kind.name, action.stage, action.microbatch
    return {(kind, stage, microbatch)} | ({("G", stage, microbatch)} if kind in "BI" else set())


def with_some_fused(orders, random):
    """Neighbouring F and B joined in one slot here and there; such lists may deadlock."""
    joined = []
    for order in orders:
        joined.append([])
        for action in order:
            before = joined[-1][-1] if joined[-1] else ""
            pair = {text.lstrip("0123456789")[:1] for text in (before, action)}
            if pair == {"F", "B"} and before[0] != "(" and random.random() < 0.3:
                joined[-1][-1] = f"({before};{action})OVERLAP_F_B"
            else:
                joined[-1].append(action)
    return joined


@st.composite
def built_schedules(draw):
    """A schedule of any family at any small size that the family allows."""
    families = [name for name in ppsim.schedules() if name not in SEARCHED]
    family = ppsim.schedules()[draw(st.sampled_from(families))]
    sizes = {"devices": draw(st.integers(1, 6)), "microbatches": draw(st.integers(1, 14))}
    if not family.fixed_stages:
        sizes["stages_per_device"] = draw(st.integers(1, 3))
    if "slices" in family.options:
        sizes["slices"] = draw(st.integers(1, 3))
    try:
        return ppsim.build(family.name, **sizes)
    except ppsim.BuildError:
        assume(False)


times = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0, 1e3))


@st.composite
def costs_of(draw, schedule):
    """Given costs: even or uneven stages, links free or not, fused slots timed or not."""
    per_stage = st.lists(times, min_size=schedule.num_stages, max_size=schedule.num_stages)
    return ppsim.Costs(
        forward=draw(times | per_stage),
        input_grad=draw(times | per_stage),
        weight_grad=draw(times | per_stage),
        overlap=draw(st.none() | times),
        latency=draw(times),
        transfer_bytes=draw(times | per_stage),
        bandwidth=draw(st.sampled_from([1.0, 3.0, float("inf")])),
    )


@settings(deadline=None, max_examples=120)
@given(data=st.data(), transport=st.sampled_from(TRANSPORTS))
def test_both_engines_give_equal_bits_for_every_family(data, transport):
    schedule = data.draw(built_schedules())
    assert_equal_bits(schedule, data.draw(costs_of(schedule)), transport)


@settings(deadline=None, max_examples=120)
@given(data=st.data(), transport=st.sampled_from(TRANSPORTS), random=st.randoms(use_true_random=False))
def test_both_engines_give_equal_bits_or_the_same_deadlock_for_random_orders(data, transport, random):
    orders = in_random_order(data.draw(built_schedules().filter(lambda schedule: schedule.slices == 1)), random)
    if data.draw(st.booleans()):
        orders = with_some_fused(orders, random)
    schedule = ppsim.Schedule.from_orders(orders)
    costs = data.draw(costs_of(schedule))
    try:
        assert_equal_bits(schedule, costs, transport)
    except ppsim.ScheduleError:  # a fused slot that waits for itself is refused before either engine runs
        assume(False)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), transport=st.sampled_from(TRANSPORTS))
def test_both_engines_price_every_link_and_direction_alike(data, transport):
    schedule = data.draw(built_schedules())
    costs = ppsim.Costs(forward=1.0, backward=2.0)
    table = costs.table(schedule)
    shape = (schedule.devices, schedule.devices)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = dataclasses.replace(
        table,
        latency=random.uniform(0, 2, shape),
        seconds_per_byte=random.uniform(0, 2, shape),
        transfer_bytes=random.uniform(0, 2, table.transfer_bytes.shape),
    )
    try:
        plan = make_plan(schedule, table, transport)
        event = run_plan(plan, "event")[1]
    except ppsim.DeadlockError:
        assume(False)
    assert_equal_times(event, run_plan(plan, "compiled")[1])


def lowered(schedule):
    try:
        return ppsim.lower(schedule)
    except ppsim.ScheduleError as error:
        return str(error)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_large_schedules_are_lowered_by_the_same_recurrence_to_the_same_program(data, random):
    orders = in_random_order(data.draw(built_schedules().filter(lambda schedule: schedule.slices == 1)), random)
    schedule = ppsim.Schedule.from_orders(with_some_fused(orders, random))
    expected = lowered(schedule)
    with pytest.MonkeyPatch.context() as patch:
        for rows in ("ROWS_WORTH_LOADING", "ROWS_WORTH_COMPILING"):
            patch.setattr(ppsim.base.compiling, rows, 0)
        assert lowered(schedule) == expected


def test_a_fused_slot_starts_when_both_parts_may_and_ends_as_one():
    orders = [["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    run = ppsim.simulate(
        ppsim.Schedule.from_orders(orders),
        ppsim.Costs(forward=1, backward=2, overlap=2.5, latency=0.5),
        engine="compiled",
    )
    assert run.start.tolist() == [0, 1, 5, 8, 11.5, 1.5, 2.5, 4.5, 5.5, 8, 9]
    assert run.end.tolist() == [1, 2, 7.5, 10, 13.5, 2.5, 4.5, 5.5, 7.5, 9, 11]


def test_opposite_sends_of_a_blocking_pair_deadlock_with_the_same_cycle_in_both_engines():
    program = ppsim.Program.from_orders(
        [
            ["0F0", "0SEND_F0", "3F1", "3B1", "3SEND_B1", "3RECV_F1", "0RECV_B0", "0B0"],
            ["2F1", "2SEND_F1", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "2RECV_B1", "2B1"],
        ]
    )
    event, compiled = (_failure(program, engine) for engine in ("event", "compiled"))
    assert str(compiled) == str(event)


def _failure(program, engine):
    with pytest.raises(ppsim.ScheduleError) as caught:
        ppsim.simulate(program, transport="rank", engine=engine)
    return caught.value


def test_auto_takes_the_compiled_engine_for_large_schedules_only():
    small = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8))
    large = ppsim.simulate(ppsim.build("1f1b", devices=8, microbatches=31_250))
    assert len(large.row_start) == ppsim.base.compiling.ROWS_WORTH_COMPILING
    assert (small.engine, large.engine) == ("event", "compiled")


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    ppsim.base.compiling.can_compile.cache_clear()
    yield
    ppsim.base.compiling.can_compile.cache_clear()


def test_without_numba_auto_takes_the_event_model_and_compiled_says_what_is_missing(without_numba):
    schedule = ppsim.build("1f1b", devices=8, microbatches=1250)
    assert ppsim.simulate(schedule).engine == "event"
    with pytest.raises(ppsim.ConfigError, match="engine='compiled' needs Numba"):
        ppsim.simulate(schedule, engine="compiled")


RUN = "import ppsim; print(ppsim.simulate(ppsim.build('gpipe', devices=2, microbatches=4), engine='compiled').makespan)"
NO_DIRECTORY = "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []; "


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=True
    )


def test_the_first_use_says_that_it_compiles_and_the_second_loads_in_silence(tmp_path):
    first, second = (python(RUN, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.stdout == second.stdout == "15.0\n"
    assert first.stderr == "ppsim: compiling the fast engine; this is done once where the result can be kept on disk\n"
    assert second.stderr == ""


MIDDLE = (
    "import ppsim; s = ppsim.build('1f1b', devices=8, microbatches=12_500); "  # 200,000 rows
    "print(*(ppsim.simulate(s, transport=t).engine for t in {!r}))"
)


def test_auto_compiles_only_where_that_is_won_back_and_takes_what_is_compiled_already(tmp_path):
    once, thrice, kept = (
        python(MIDDLE.format(transports), NUMBA_CACHE_DIR=str(tmp_path))
        for transports in (["async"], ["async"] * 3, ["async", "rank"])
    )
    assert (once.stdout, once.stderr) == ("event\n", "")
    assert thrice.stdout == "event event compiled\n"
    assert kept.stdout == "compiled event\n"


def test_a_machine_where_no_cache_directory_can_be_written_compiles_each_time():
    result = python(NO_DIRECTORY + RUN)
    assert result.stdout == "15.0\n"
    assert result.stderr.startswith("ppsim: compiling")


MANY_STAGES = (
    "import warnings; warnings.simplefilter('error'); import ppsim; "
    "runs = [ppsim.simulate(ppsim.build(name, devices=66, microbatches=3), transport=transport, engine='compiled') "
    "for name in ('v-min', 'zb-v') for transport in ('async', 'rank')]; print([hash(r.end.tobytes()) for r in runs])"
)


def test_loops_that_are_not_compiled_calculate_with_as_large_numbers():
    """More than 127 stages, which lie in columns of one byte each."""
    compiled = python(MANY_STAGES, PYTHONHASHSEED="0")
    plain = python(MANY_STAGES, PYTHONHASHSEED="0", NUMBA_DISABLE_JIT="1")
    assert plain.stdout == compiled.stdout


QUEUED = (
    "import ppsim; s = ppsim.build('gpipe', devices=2, microbatches=4); "
    "print(*(ppsim.simulate(s, engine='compiled', transport=t).makespan for t in ('async', 'rank')))"
)


def test_a_damaged_cache_is_made_again(tmp_path):
    whole = python(QUEUED, NUMBA_CACHE_DIR=str(tmp_path))
    for number, file in enumerate(sorted(tmp_path.rglob("*.nb*"))):
        file.write_bytes((b"not a cache", file.read_bytes()[:100], b"")[number % 3])
    damaged, healed = (python(QUEUED, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert whole.stdout == damaged.stdout == healed.stdout == "15.0 15.0\n"
    assert damaged.stderr.startswith("ppsim: compiling")
    assert healed.stderr == ""


@st.composite
def tables_with_everything(draw, schedule):
    """Costs with gathers, reductions, an optimizer step and shared ports; whole numbers make many times equal."""
    table = draw(costs_of(schedule)).table(schedule)
    random = np.random.default_rng(draw(st.integers(0, 999)))
    whole = draw(st.booleans())

    def some(*shape):
        return random.integers(0, 3, shape).astype(float) if whole else random.uniform(0, 2, shape)

    ports, on_a_way = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    ways = random.permuted(np.tile(np.arange(max(ports, on_a_way)), (schedule.devices,) * 2 + (1,)), axis=2)
    ways = np.where(ways < ports, ways, -1)[:, :, :on_a_way].astype(np.int32)
    return dataclasses.replace(
        table,
        seconds=some(4, schedule.num_stages),
        latency=some(schedule.devices, schedule.devices),
        unshard_seconds=draw(st.sampled_from([None, some(schedule.num_stages)])),
        reduce_seconds=some(schedule.num_stages),
        optimizer_seconds=some(schedule.num_stages),
        recompute_seconds=some(schedule.num_stages),
        offload_bytes=some(schedule.num_stages),
        offload_seconds_per_byte=float(draw(st.sampled_from([0.0, 1.0, 0.3]))),
        offload_switch=draw(st.sampled_from([None, 2, 3])),
        link_ports=draw(st.sampled_from([None, ways, ways])),
        port_capacity=random.integers(1, 4, ports),
    )


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    transport=st.sampled_from(TRANSPORTS),
    optimizer=st.sampled_from([None, "sync", "post-validated"]),
    seed=st.integers(0, 99),
)
def test_both_engines_give_equal_bits_with_streams_optimizer_ports_and_jitter(data, transport, optimizer, seed):
    schedule = data.draw(built_schedules())
    table = data.draw(tables_with_everything(schedule))
    program = ppsim.lower(schedule, sharded=True) if data.draw(st.booleans()) else schedule
    jitter = data.draw(st.sampled_from([None, ppsim.Jitter(actions=0.1, transfers=0.2, devices=0.1, links=0.1)]))

    class Given:
        def table(self, schedule):
            return table

    def run(engine):
        step = optimizer if schedule.iterations == 1 else None
        try:
            return ppsim.simulate(
                program, Given(), transport=transport, engine=engine, optimizer=step, jitter=jitter, seed=seed
            )
        except ppsim.DeadlockError as error:
            return str(error)

    event, compiled = run("event"), run("compiled")
    if isinstance(event, str):
        assert compiled == event
        return
    assert_equal_times(event.times, compiled.times)
    assert compiled == event
    assert len(event.reduce_end) == len(event.reductions) >= len(schedule.holdings) * (table.reduce_seconds is not None)
    assert len(event.step_end) == (schedule.devices if optimizer and schedule.iterations == 1 else 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scale", [None, [1.0, 1.5] * 256], ids=["alike", "of two sizes"])
def test_lists_of_thousands_of_rows_of_microbatches(transport, scale):
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=512)
    costs = ppsim.Costs(
        forward=1.1, backward=2.3, latency=0.3, transfer_bytes=1.0, bandwidth=3.0, microbatch_scale=scale
    )
    assert len(schedule) == 8192
    assert_equal_bits(schedule, costs, transport)
