"""Two ways to read a CSV file agree: as columns and cell by cell."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ppsim
from ppsim.schedule import ScheduleColumns, read_csv
from tests.fuzz.cases import COUNTS, fuzz

actions = st.sampled_from(
    ["0F0", "1B2", "12F34", "345B6", "07I3", "1W999999999", "2SEND_F0", "0RECV_B1", "1UNSHARD", "3R1", "1OFFLOAD0"]
)
slots = st.sampled_from(["(0F1;1B0)OVERLAP_F_B", "(1B0;0F1)OVERLAP_F_B"])
odd = st.sampled_from(
    ["", " ", " 0F0", "0F", "F0", "0UNSHARD1", "(0F0;1F0)OVERLAP_F_B", "(0F0)", ";", "0f0", "é", "1F2147483648"]
)


def tables_of(*cells):
    return st.lists(st.lists(st.one_of(*cells), max_size=6), min_size=1, max_size=5)


plain_tables = tables_of(actions, slots, st.just(""))


def answer(read, *arguments):
    """The schedule, or the faults without the name of the file."""
    try:
        return read(*arguments)
    except ppsim.ScheduleError as error:
        return [fault.partition(": ")[2] if "empty" in fault else fault for fault in error.faults]


@fuzz
@given(st.one_of(plain_tables, tables_of(actions, slots, actions, odd)))
def test_a_file_read_as_columns_and_the_same_file_with_quotes_are_one_schedule(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_text("\n".join(",".join(row) for row in table))
    plain = answer(read_csv, path)
    path.write_text("\n".join(",".join(f'"{cell}"' if cell else cell for cell in row) for row in table))
    quoted = answer(read_csv, path)
    assert plain == quoted
    if isinstance(plain, ScheduleColumns) and isinstance(quoted, ScheduleColumns):
        assert np.array_equal(plain.idle, quoted.idle)
    COUNTS["CSV files read in two ways"]["answers" if isinstance(plain, ScheduleColumns) else "refusals"] += 1
