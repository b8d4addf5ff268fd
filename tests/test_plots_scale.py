"""The time axis: units, ticks and seconds as text."""

import pytest
from charts import round_ticks
from hypothesis import given
from hypothesis import strategies as st

from ppsim.base.units import axis_unit, seconds_text, time_unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (33.0, "33 s"), (3261.0, "3,261 s"), (0.0125, "12.5 ms"), (0.00048, "480 µs"), (7e-9, "7 ns"),
        (1.0, "1 s"), (0.99999, "1 s"), (28.54321, "28.54 s"), (1e-12, "0.001 ns"),
        (35_000.0, "35,000 s"), (1_188_000.0, "330 h"), (1.8e100, "5e+96 h"),
    ],
)  # fmt: skip
def test_seconds_are_written_in_the_unit_that_fits(seconds, text):
    assert seconds_text(seconds) == text


@given(st.floats(1e-200, 1e100), st.integers(2, 20))
def test_ticks_are_even_begin_at_zero_and_stay_inside(last, most):
    ticks = round_ticks(last, most)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= max(most, 3)
    assert ticks[-1] <= last * (1 + 1e-9)


def test_ticks_are_one_two_or_five_times_a_power_of_ten():
    assert round_ticks(33, 8).tolist() == [0, 5, 10, 15, 20, 25, 30]
    assert round_ticks(0.4, 5).tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert round_ticks(48, 2).tolist() == pytest.approx([0, 20, 40])
    assert round_ticks(0, 5).tolist() == [0]


@pytest.mark.parametrize(
    ("seconds", "symbol"), [(0, "s"), (2, "s"), (1, "s"), (0.5, "ms"), (2e-5, "µs"), (1e-30, "ns")]
)
def test_the_unit_keeps_numbers_at_or_above_one(seconds, symbol):
    assert time_unit(seconds).symbol == symbol


@pytest.mark.parametrize(
    ("largest", "unit", "shown", "symbol"),
    [
        (0.25, "seconds", 250.0, "ms"),
        (80e9, "bytes", 80.0, "GB"),
        (999.0, "bytes", 999.0, "B"),
        (0.0, "bytes", 0.0, "B"),
        (0.15, "fraction", 15.0, "%"),
        (12.0, "microbatches", 12.0, "microbatches"),
    ],
)
def test_an_axis_has_the_unit_in_which_its_numbers_are_readable(largest, unit, shown, symbol):
    factor, word = axis_unit(largest, unit)
    assert (largest * factor, word) == (pytest.approx(shown), symbol)
