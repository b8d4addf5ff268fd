"""Damaged and random input ends in an answer or a PpsimError, and two ways to the same answer agree."""

import os
from contextlib import suppress

import numpy as np
import pytest
from command_line import CONFIGS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppsim
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.csv_cells import blocks, plain_cells
from ppsim.schedule.orders import read_csv

EXAMPLES = int(os.environ.get("PPSIM_FUZZ_EXAMPLES", "100"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
actions = st.sampled_from(["0F0", "1B2", "07I3", "1W999999999", "2SEND_F0", "0RECV_B1", "1UNSHARD", "3R1", "1OFFLOAD0"])
slots = st.sampled_from(["(0F1;1B0)OVERLAP_F_B", "(1B0;0F1)OVERLAP_F_B"])
odd = st.sampled_from(
    ["", " ", " 0F0", "0F", "F0", "0UNSHARD1", "(0F0;1F0)OVERLAP_F_B", "(0F0)", ";", "0f0", "é", "1F2147483648"]
)
tables = st.lists(st.lists(st.one_of(actions, slots, actions, odd), max_size=6), min_size=1, max_size=5)

plain_tables = st.lists(st.lists(st.one_of(actions, slots, st.just("")), max_size=6), min_size=1, max_size=5)


def answer(read, *arguments):
    """The schedule, or the faults without the name of the file."""
    try:
        return read(*arguments)
    except ppsim.ScheduleError as error:
        return [fault.partition(": ")[2] if "empty" in fault else fault for fault in error.faults]


@fuzz
@given(tables)
def test_a_file_read_in_blocks_and_the_same_file_with_quotes_are_one_schedule(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_text("\n".join(",".join(row) for row in table))
    plain = answer(read_csv, path)
    path.write_text("\n".join(",".join(f'"{cell}"' if cell else cell for cell in row) for row in table))
    quoted = answer(read_csv, path)
    assert plain == quoted
    if isinstance(plain, ScheduleColumns):
        assert np.array_equal(plain.idle, quoted.idle)


@fuzz
@given(
    st.lists(st.lists(st.one_of(actions, slots, st.just("")), max_size=6), min_size=1, max_size=5), st.integers(1, 30)
)
def test_where_blocks_are_cut_does_not_matter(table, size):
    text = "\n".join(",".join(row) for row in table) + "\n"
    found = [plain_cells(block) for block in blocks(text, size)]
    (whole,) = [plain_cells(block) for block in blocks(text)]
    for part in range(2):
        pieces = [np.concatenate(columns) for columns in zip(*(piece[part] for piece in found), strict=True)]
        assert all(map(np.array_equal, pieces, whole[part]))


@fuzz
@given(st.sampled_from(sorted(CONFIGS.glob("*.yaml"))), st.data())
def test_a_damaged_config_is_one_or_a_ppsim_error(tmp_path_factory, config, data):
    content = bytearray(config.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(content)
    with suppress(ppsim.PpsimError):
        ppsim.load_config(path)


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "dualpipe"])
@fuzz
@given(st.data())
def test_a_damaged_schedule_is_one_or_a_ppsim_error(tmp_path_factory, family, data):
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    ppsim.build(family, devices=4, microbatches=8).to_csv(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    with suppress(ppsim.PpsimError):
        ppsim.simulate(ppsim.Schedule.from_csv(path), transport="directed", engine="event")
