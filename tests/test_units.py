"""Numbers for people: three significant digits, one unit, and never a NaN."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.units import byte_unit, mib, nbytes, percent, rate, seconds, three_digits, time_unit


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0 s"), (3.514e-3, "3.51 ms"), (30e-9, "30.0 ns"), (1e-6, "1.00 µs"), (117e-6, "117 µs"), (0.9994, "999 ms"),
    (0.9996, "1.00 s"), (999.6e-6, "1.00 ms"), (12.34, "12.3 s"), (4321.0, "4320 s"), (-2e-3, "-2.00 ms"),
])  # fmt: skip
def test_seconds_have_three_digits_and_the_largest_unit_that_fits(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (102_228_128, "102 MB"), (1_000_000_000, "1.00 GB"),
    (999_600, "1.00 MB"), (1.5, "1.50 B"),
])  # fmt: skip
def test_bytes_count_in_powers_of_a_thousand(value, text):
    assert nbytes(value) == text


def test_caps_count_in_powers_of_1024():
    assert mib(25 * 1024 * 1024) == "25 MiB"
    assert mib(1024 * 1024 + 512 * 1024) == "1.50 MiB"


def test_rates_and_shares_name_their_unit():
    assert rate(12e9) == "12.0 GB/s"
    assert rate(25.78e9) == "25.8 GB/s"
    assert rate(0) == "0 GB/s"
    assert percent(0.7834) == "78.3 %"
    assert percent(1.0) == "100 %"
    assert percent(0.0) == "0 %"
    assert percent(1e-5) == "< 0.1 %"


@pytest.mark.parametrize(("longest", "unit"), [
    (0.0, "µs"), (500e-6, "µs"), (1e-3, "ms"), (0.17, "ms"), (1.0, "s"), (90.0, "s")
])  # fmt: skip
def test_a_picture_has_one_unit_of_time(longest, unit):
    factor, name = time_unit(longest)
    assert name == unit
    assert factor == {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_a_picture_has_one_unit_of_bytes():
    assert byte_unit(3.1e9) == (1e9, "GB")
    assert byte_unit(0) == (1.0, "B")


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_three_digits_are_within_half_of_the_last_and_have_no_exponent(value):
    text = three_digits(value)
    assert "e" not in text
    assert abs(float(text) - value) <= 0.5 * 10 ** (math.floor(math.log10(value)) - 2) * (1 + 1e-6)


@pytest.mark.parametrize("function", [three_digits, seconds, nbytes, mib, rate, percent])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_an_error_and_never_reaches_a_picture(function, value):
    with pytest.raises(InputError, match="finite"):
        function(value)
