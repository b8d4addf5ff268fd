"""Quantities with units: read, printed and read again, and wrong units named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import ConfigError
from ppsim.base.units import difference_text, format_quantity, parse_fraction, parse_quantity, value_text


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


@pytest.mark.parametrize(("value", "unit"), [("0 GB/s", "bytes per second"), (0, "FLOP/s"), ("-1 TFLOP/s", "FLOP/s")])
def test_a_rate_is_above_0(value, unit):
    with pytest.raises(ConfigError, match=f"must be a number of {unit} above 0, or text with a unit such as"):
        parse_quantity(value, unit)


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-8, 1e17), st.sampled_from(["seconds", "bytes", "bytes per second", "FLOP/s"]))
def test_what_is_printed_reads_back_as_the_same_quantity(value, unit):
    assert parse_quantity(format_quantity(value, unit), unit) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (33.0, "seconds", "33 s"), (-6.661e-15, "seconds", "0 s"), (1.5e4, "device-seconds", "15,000 s"),
        (80e9, "bytes", "80 GB"), (4.5e11, "bytes per second", "450 GB/s"), (9.89e14, "FLOP/s", "989 TFLOP/s"),
        (0.27272, "fraction", "27.3 %"), (-1e-9, "fraction", "0.0 %"),
        (123456.7, "tokens per second", "123,457 tokens/s"),
        (4.0, "microbatches through one device share of the model", "4"),
        (12345, "transfers", "12,345"), (None, "bytes", "-"),
    ],
)  # fmt: skip
def test_each_unit_has_one_format(value, unit, text):
    assert value_text(value, unit) == text


@pytest.mark.parametrize(
    ("difference", "unit", "text"),
    [
        (0.002, "seconds", "+2 ms"), (-0.002, "seconds", "-2 ms"), (-6.661e-15, "seconds", "0 s"), (None, "bytes", "-"),
        (0.0924, "fraction", "+9.2 percentage points"), (-0.2, "fraction", "-20.0 percentage points"),
        (0.0, "fraction", "0.0 percentage points"), (-3.0, "transfers", "-3"),
    ],
)  # fmt: skip
def test_differences_have_a_sign_and_of_percents_are_percentage_points(difference, unit, text):
    assert difference_text(difference, unit) == text


@pytest.mark.parametrize(("value", "fraction"), [("15%", 0.15), ("12.5 %", 0.125), (0.15, 0.15), ("1", 1.0)])
def test_a_fraction_is_a_number_or_percent(value, fraction):
    assert parse_fraction(value) == pytest.approx(fraction)


@pytest.mark.parametrize("value", ["x", "-1%", float("nan"), float("inf"), True, None])
def test_what_is_no_fraction_is_named(value):
    with pytest.raises(ConfigError, match=r"must be a finite number of at least 0, such as 0\.15 or 15%"):
        parse_fraction(value)
