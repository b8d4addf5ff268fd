"""The compiled engine against the event model: the same timelines bit for bit, the same deadlocks."""

import os
import shutil
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from random_runs import assert_equal_times, compare_engines, random_case
from random_schedules import schedules

import ppsim
import ppsim.base.compiling
from ppsim.lowering import TRANSPORTS


def outcome(schedule, costs, transport, engine):
    """The times of a run, or the deadlock's text."""
    try:
        run = ppsim.simulate(schedule, costs, transport=transport, engine=engine)
    except ppsim.DeadlockError as error:
        return str(error)
    assert run.engine == engine
    return run.times


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


@pytest.mark.parametrize(("transport", "limit"), [("async", 60), ("directed", 115), ("rank", 115)])
def test_an_action_takes_few_bytes(transport, limit, monkeypatch):
    """Peak of NumPy's arrays per action; a process takes a tenth more, which docs/performance.md limits."""

    def simulate(microbatches):
        schedule = ppsim.build("1f1b", devices=8, microbatches=microbatches)
        run = ppsim.simulate(schedule, ppsim.Costs(latency=0.1), transport=transport, engine="compiled")
        return len(schedule), run.bubble_fraction, run.peak_activations

    monkeypatch.setattr(ppsim.base.compiling, "ROWS_WORTH_COMPILING", 0)  # else fresh machines use plain loops
    simulate(8)
    tracemalloc.start()
    try:
        actions, *_ = simulate(4000)
        assert tracemalloc.get_traced_memory()[1] < limit * actions
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lists", ["family", "random"])
def test_both_engines_give_equal_bits_or_the_same_error_whatever_features_meet(lists):
    errors = [compare_engines(random_case(seed, lists=lists), seed % 8 == 0) for seed in range(80)]
    assert errors.count(None) > 50


def lowered(schedule):
    try:
        return ppsim.lower(schedule)
    except ppsim.ScheduleError as error:
        return str(error)


@settings(deadline=None, max_examples=60)
@given(schedule=schedules())
def test_large_schedules_are_lowered_by_the_same_recurrence_to_the_same_program(schedule):
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


# One write, since two workers share a pipe, and an unbuffered print writes its line's end apart.
RUN = (
    "import os, ppsim; run = ppsim.simulate(ppsim.build('gpipe', devices=2, microbatches=4), engine='compiled'); "
    "os.write(1, f'{run.makespan}\\n'.encode())"
)
QUEUED = RUN.replace("'compiled'", "'compiled', transport='rank'")  # other loops, which are compiled too
MIDDLE = (
    "import ppsim; from ppsim.base import compiling; "
    "compiling.ROWS_WORTH_LOADING //= 100; compiling.ROWS_WORTH_COMPILING //= 100; "
    "s = ppsim.build('1f1b', devices=8, microbatches=125); "  # 2,000 rows
    "print(*(ppsim.simulate(s, transport=t).engine for t in {!r}))"
)
NO_DIRECTORY = "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []; "
NOT_IN_PACKAGE = "import numba.core.caching as caching; caching.CacheImpl._locator_classes.pop(1); "
COMPILING = "ppsim: compiling the fast engine, once per machine (or per process if no cache folder can be written)\n"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=True
    )


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory):
    """A cache that both loops are compiled into, one after the other, and what each process said."""
    folder = tmp_path_factory.mktemp("compiled")
    middle = [MIDDLE.format(transports) for transports in (["async"], ["async"] * 3, ["async", "rank"])]
    return folder, [python(code, NUMBA_CACHE_DIR=str(folder)) for code in (*middle, QUEUED, RUN)]


def test_the_first_compilation_on_a_machine_is_announced_and_no_other(filled_cache):
    _, (once, thrice, *others) = filled_cache
    assert (once.stderr, thrice.stderr) == ("", COMPILING)
    assert [other.stderr for other in others] == ["", "", ""]
    assert [run.stdout for run in others[1:]] == ["15.0\n", "15.0\n"]


def test_auto_compiles_only_where_that_is_won_back_and_takes_what_is_compiled_already(filled_cache):
    _, (once, thrice, kept, *_) = filled_cache
    assert once.stdout == "event\n"
    assert thrice.stdout == "event event compiled\n"
    assert kept.stdout == "compiled event\n"


def test_workers_that_compile_at_once_in_a_folder_of_the_user_announce_it_once_and_no_other_compiles(tmp_path):
    """The package's own folder is one that nobody may write."""
    run = NOT_IN_PACKAGE + RUN
    at_once = (
        f"import subprocess, sys; workers = [subprocess.Popen([sys.executable, '-c', {run!r}]) for _ in range(2)]; "
        "[worker.wait() for worker in workers]"
    )
    first, second = (python(code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="") for code in (at_once, run))
    assert (first.stdout, second.stdout) == ("15.0\n15.0\n", "15.0\n")
    assert (first.stderr, second.stderr) == (COMPILING, "")


def test_a_machine_where_no_cache_directory_can_be_written_compiles_each_time():
    result = python(NO_DIRECTORY + RUN)
    assert (result.stdout, result.stderr) == ("15.0\n", COMPILING)


MANY_STAGES = (
    "import warnings; warnings.simplefilter('error'); import ppsim; "
    "runs = [ppsim.simulate(ppsim.build(name, devices=66, microbatches=m), transport=transport, engine='compiled') "
    "for name, m in (('looped-bfs', 1), ('zb-v', 3)) for transport in ('async', 'rank')]; "
    "print([hash(r.end.tobytes()) for r in runs])"
)


def test_loops_that_are_not_compiled_calculate_with_as_large_numbers():
    """More than 127 stages, which lie in columns of one byte each."""
    compiled = python(MANY_STAGES, PYTHONHASHSEED="0")
    plain = python(MANY_STAGES, PYTHONHASHSEED="0", NUMBA_DISABLE_JIT="1")
    assert plain.stdout == compiled.stdout


def test_a_damaged_cache_is_made_again(filled_cache, tmp_path):
    whole, (*_, unharmed) = filled_cache
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for number, file in enumerate(sorted(tmp_path.rglob("*.nb*"))):
        file.write_bytes((b"not a cache", file.read_bytes()[:100], b"")[number % 3])
    damaged, healed = (python(RUN, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert unharmed.stdout == damaged.stdout == healed.stdout == "15.0\n"
    assert (damaged.stderr, healed.stderr) == ("", "")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scale", [None, [1.0, 1.5] * 256], ids=["alike", "of two sizes"])
def test_lists_of_thousands_of_rows_of_microbatches(transport, scale):
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=512)
    costs = ppsim.Costs(
        forward=1.1, backward=2.3, latency=0.3, transfer_bytes=1.0, bandwidth=3.0, microbatch_scale=scale
    )
    assert len(schedule) == 8192
    assert_equal_bits(schedule, costs, transport)


class Importing:
    """A kernel during whose look-up another thread imports a module with further kernels."""

    @property
    def __code__(self):
        ppsim.base.compiling.kernel(lambda: None)
        return ppsim.lowering.posts.post_in_turn.__code__


def test_kernels_that_another_thread_imports_meanwhile_do_no_harm(monkeypatch):
    """The explorer loads the compiled engine in one thread while another simulates."""
    compiling = ppsim.base.compiling
    monkeypatch.setattr(compiling, "_options", compiling._options | {Importing(): {}})
    monkeypatch.setattr(compiling, "_let_kernels_call", lambda _: compiling.kernel(lambda: None))
    assert compiling._is_cached(compiling.compiled.__wrapped__(ppsim.lowering.posts.post_in_turn)) in (True, False)
