"""Quantities with units: read, printed and read again, and wrong units named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import ConfigError
from ppsim.base.units import format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("2ms", "seconds", 0.002),
        ("3.4 µs", "seconds", 3.4e-6),
        ("1e-6 s", "seconds", 1e-6),
        (".5", "seconds", 0.5),
        (7, "seconds", 7.0),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("450 GB/s", "bytes per second", 450e9),
        ("400 Gb/s", "bytes per second", 50e9),
        ("200 Gbit/s", "bytes per second", 25e9),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("2.25 PFLOPS", "FLOP/s", 2.25e15),
    ],
)
def test_text_with_a_unit_is_an_si_number(text, unit, value):
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("2 GB", "seconds"), ("2 ms", "bytes"), ("80 Gb", "bytes"), ("1 xs", "seconds"), ("-1 s", "seconds"),
        ("", "bytes"), ("1 2 s", "seconds"), ("nan", "seconds"), ("1e999", "seconds"), (True, "bytes"), (None, "bytes"),
        ([1], "bytes"), (float("inf"), "bytes"), (10**400, "bytes"), ("9" * 5000, "bytes"), ("GB", "bytes"),
    ],
)  # fmt: skip
def test_a_wrong_unit_or_number_is_one_clear_error(value, unit):
    with pytest.raises(ConfigError, match=f"must be a number of {unit} of at least 0, or text with a unit such as"):
        parse_quantity(value, unit)


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-8, 1e17), st.sampled_from(["seconds", "bytes", "bytes per second", "FLOP/s"]))
def test_what_is_printed_reads_back_as_the_same_quantity(value, unit):
    assert parse_quantity(format_quantity(value, unit), unit) == pytest.approx(value, rel=1e-3)
