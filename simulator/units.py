"""Numbers as a person reads them: three significant digits and a unit, SI inside and converted only here.

Bytes are SI (1 MB = 10^6 bytes), as bandwidths are; a bucket's cap is in MiB (2^20), as torch counts it. A picture
takes one unit for its whole time axis: `time_unit(longest)`.

Not modelled: parsing. What a person types is read where it is typed.
"""

import math

from simulator.errors import InputError

TIME_UNITS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_BYTE_UNITS = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"))


def three_digits(value: float) -> str:
    """Three significant digits, without an exponent: 0.0123, 1.23, 12.3, 123, 1230. Raises InputError on NaN or inf."""
    if not math.isfinite(value):
        raise InputError(f"{value}: a picture shows finite numbers only. Look for the division by zero before it.")
    if value == 0:
        return "0"
    shown = float(f"{value:.2e}")
    digits = math.floor(math.log10(abs(shown)))
    return f"{shown:.{max(0, 2 - digits)}f}"


def _in_unit(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """The value in the largest unit of which it has at least one, after rounding: 999.9 ms is 1.00 s."""
    rounded = abs(float(f"{value:.2e}")) if math.isfinite(value) else value
    factor, unit = max((found for found in units if found[0] <= rounded * (1 + 1e-12)), default=units[0])
    return f"{three_digits(value / factor)} {unit}"


def seconds(value: float) -> str:
    """`3.51 ms`; below a microsecond in ns."""
    return "0 s" if value == 0 else _in_unit(value, ((1e-9, "ns"), *TIME_UNITS))


def time_unit(longest_s: float) -> tuple[float, str]:
    """The one unit of a picture that shows up to `longest_s`: (seconds in a unit, its name)."""
    return max((found for found in TIME_UNITS if found[0] <= longest_s * (1 + 1e-12)), default=TIME_UNITS[0])


def nbytes(value: float) -> str:
    """`102 MB`, in powers of 1000; below 1 kB all digits."""
    if math.isfinite(value) and abs(value) < 1000 and value == int(value):
        return f"{int(value)} B"
    return _in_unit(value, _BYTE_UNITS)


def byte_unit(largest: float) -> tuple[float, str]:
    """The one unit of a picture that shows up to `largest` bytes: (bytes in a unit, its name)."""
    return max((found for found in _BYTE_UNITS if found[0] <= largest * (1 + 1e-12)), default=_BYTE_UNITS[0])


def mib(value: float) -> str:
    """`25 MiB`, in powers of 1024: what torch's bucket_cap_mb counts in. Whole numbers have no decimals."""
    found = value / (1 << 20)
    return f"{int(found)} MiB" if math.isfinite(found) and found == int(found) else f"{three_digits(found)} MiB"


def rate(bytes_per_s: float) -> str:
    """`12.0 GB/s`."""
    return "0 GB/s" if bytes_per_s == 0 else f"{_in_unit(bytes_per_s, _BYTE_UNITS)}/s"


def percent(fraction: float) -> str:
    """`78.3 %` of a fraction 0.783; what is next to nothing is `< 0.1 %`."""
    if 0 < abs(fraction) < 0.0005:
        return "< 0.1 %" if fraction > 0 else "> -0.1 %"
    return f"{three_digits(fraction * 100)} %"
