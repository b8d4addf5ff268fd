"""Memory of large columns stays with the process: the next column takes it, and no two that live share it."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ppsim
from ppsim.base.host_memory import memory_bytes
from ppsim.base.immutable import unwritable
from ppsim.base.kept_memory import empty_column, full_column

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the C library alone keeps memory")
ENTRIES = 3 * 2**20  # of int32: 12 MiB


@pytest.fixture(autouse=True)
def nothing_kept():
    ppsim.keep_memory(0)
    ppsim.keep_memory("1 GB")
    yield
    ppsim.keep_memory(memory_bytes() / 8)


def address(column):
    return column.__array_interface__["data"][0]


def block_of(column):
    return address(column) // 2**21


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_next_large_column_takes_the_memory_of_the_last():
    column = full_column(ENTRIES, 7, np.int32)
    first = block_of(column)
    del column
    assert block_of(empty_column((ENTRIES // 4, 2), np.float64)) == first


def test_a_view_keeps_the_memory_from_being_taken():
    column = full_column(ENTRIES, 7, np.int32)
    view = column[5:9]
    del column
    other = full_column(ENTRIES, 8, np.int32)
    assert view.tolist() == [7, 7, 7, 7]
    assert other[0] == 8


def test_a_closed_column_is_no_copy_and_cannot_be_opened():
    column = full_column(ENTRIES, 7, np.int32)
    closed = unwritable(column)
    assert address(closed) == address(column)
    with pytest.raises(ValueError, match="WRITEABLE"):
        closed.flags.writeable = True


def test_small_columns_and_columns_of_any_shape_are_those_of_numpy():
    for shape in (0, 3, (2, 3), (ENTRIES, 2)):
        for dtype in (bool, np.int8, np.int32, np.float64):
            column, own = full_column(shape, 1, dtype), np.full(shape, 1, dtype)
            assert (column.dtype, column.shape, column.flags.c_contiguous) == (own.dtype, own.shape, True)
            assert np.array_equal(column, own)
            assert np.array_equal(pickle.loads(pickle.dumps(column)), own)  # noqa: S301 - our own bytes


def test_more_than_the_limit_is_not_kept():
    before = resident_bytes()
    ppsim.keep_memory("40 MB")
    columns = [full_column(ENTRIES, 7, np.int32) for _ in range(10)]
    assert resident_bytes() - before > 120e6
    columns.clear()
    assert resident_bytes() - before < 60e6
    ppsim.keep_memory(0)
    assert resident_bytes() - before < 20e6


def test_a_column_that_no_machine_holds_is_refused_as_numpy_refuses_it():
    with pytest.raises(MemoryError):
        empty_column(2**50, np.int8)
    with pytest.raises(ValueError, match=r"too big|dimension"):
        empty_column(2**62, np.float64)


@pytest.mark.parametrize("most", [-1, float("nan"), "much", None, True])
def test_what_is_no_size_is_refused(most):
    with pytest.raises(ppsim.ConfigError, match=r"keep_memory: .*bytes"):
        ppsim.keep_memory(most)


def test_columns_of_many_threads_never_share_memory():
    def fill(number):
        for _ in range(20):
            column = full_column(ENTRIES, number, np.int32)
            assert (column[::1024] == number).all()
            del column
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(fill, range(8)))


def test_runs_in_memory_of_earlier_ones_are_equal_and_leave_those_that_live_alone():
    schedule = ppsim.build("1f1b", devices=4, microbatches=150_000)
    first = ppsim.simulate(schedule, ppsim.Costs(latency=0.1), engine="compiled")
    ends = first.row_end.tobytes()
    for latency in (0.3, 0.2, 0.1):
        last = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=150_000), ppsim.Costs(latency=latency),
                              engine="compiled")  # fmt: skip
    assert last.row_end.tobytes() == first.row_end.tobytes() == ends
    for _ in range(2):
        queued = ppsim.simulate(schedule, ppsim.Costs(latency=0.1), transport="rank", engine="compiled")
    assert queued == ppsim.simulate(schedule, ppsim.Costs(latency=0.1), transport="rank", engine="compiled")


CHILD = """
import os, numpy as np
from ppsim.base.kept_memory import full_column
held, gone = full_column(3 * 2**20, 7, np.int32), full_column(3 * 2**20, 8, np.int32)
where = gone.__array_interface__["data"][0] // 2**21
del gone
child = os.fork()
if not child:
    mine = full_column(3 * 2**20, 9, np.int32)
    del held
    os._exit(int((mine != 9).any()))
assert os.waitpid(child, 0)[1] == 0
again = full_column(3 * 2**20, 5, np.int32)
assert again.__array_interface__["data"][0] // 2**21 == where and (held == 7).all()
"""


def test_a_forked_child_leaves_its_parents_columns_alone_and_the_end_of_a_process_is_silent():
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


INTERRUPTED = """
import sys, numpy as np
from ppsim.base import kept_memory
sys.unraisablehook = lambda _: None  # what is raised while an array dies is printed, and the program goes on

def interrupt(frame, event, _):
    global left
    if frame.f_code.co_filename != kept_memory.__file__:
        return None
    frame.f_trace_opcodes = True
    left -= event == "opcode"
    if not left:
        raise KeyboardInterrupt
    return interrupt

for place in range(1, 10_000):
    left = place
    sys.settrace(interrupt)
    try:
        kept_memory.full_column(2**20, 7, np.int32)
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    if left > 0:
        break
    assert (kept_memory.full_column(2**20, place, np.int32) == place).all()
assert 100 < place < 10_000
"""


def test_after_an_interrupt_at_any_place_columns_are_had_as_before():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
