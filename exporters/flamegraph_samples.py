"""The samples of the flame graph's page one by one, as compact columns of bytes: time, thread and stack, processor,
values. page.samples.js reads them.

Samples stand thread by thread, each in order of time. Time and row are differences to the previous sample, modulo the
number of different values, so a constant column is all 0. A column is as many bytes wide as its largest number needs;
all lowest bytes come first, then the next ones. Times are rounded down to a tick, some millionths of the recording.
Values in nanoseconds are rounded to a 32nd of the sampling period. The rounding error carries over to the next sample
of the same thread and stack, so that sums are exact to half a unit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.sample_filter import timed
from pyprof.model.profile import Profile

I64 = npt.NDArray[np.int64]

_TICKS = 19
"""Binary logarithm of the maximum number of ticks in the timeline of a flame graph page."""
_MIN_TICK_NS = 1000
_STEPS = 32
"""Divisor of the sampling period. The result is the unit to which a flame graph page rounds values in nanoseconds."""
_WIDEST = 30
"""Maximum number of bits of a number in the columns of samples in a flame graph page."""


@dataclass(frozen=True, slots=True)
class PageSamples:
    """The packed columns of samples in the flame graph's page, and their description.

    Attributes:
        header: Description for the JSON. count: number of samples. tickNs, ticks: length and number of ticks. originNs:
            begin of the first tick, at or before the profile's start. spanNs: time from there to the end. gaps:
            intervals since the start in which nothing was recorded. widths: bytes of time, row, processor + 1 and each
            value; 0 for a column that is left out because all its numbers are `same`. units: of the values.
        data: The columns.
    """

    header: dict[str, object]
    data: bytes


def pack_samples(profile: Profile, row: I64) -> PageSamples:
    """Pack the samples of a profile into columns of bytes for the flame graph's page.

    If a value is negative, or if all samples have one time because no times are known, no sample is written and the
    page has no timeline. There may be millions of samples, so the columns are made one after the other.

    Args:
        row: (n,) number of each sample's row in the page, which stands for a thread and a stack.
    """
    order = np.lexsort((profile.time_ns, profile.thread))
    if len(order) and (profile.values.min() < 0 or not timed(profile)):
        order = order[:0]
    first, last = _span(profile) if len(order) else (0, profile.duration_ns)
    tick_ns = _tick_ns(last - first)
    first = first // tick_ns * tick_ns
    ticks = (last - first) // tick_ns + 1
    packed = [_packed(_steps((profile.time_ns[order] - (profile.start_ns + first)) // tick_ns, ticks))]
    row = row[order]
    packed.append(_packed(_steps(row, int(row.max(initial=0)) + 1)))
    packed.append(_packed(0 * order if profile.cpu is None else profile.cpu[order].astype(np.int64) + 1))
    units = []
    for column, value_type in enumerate(profile.value_types):
        values = profile.values[:, column][order]
        units.append(_unit(values, profile.period_ns if value_type.unit == "nanoseconds" else 1))
        packed.append(_packed(_rounded(values, row, units[-1])))
    header = {
        "count": len(order),
        "tickNs": tick_ns,
        "ticks": ticks,
        "originNs": first,
        "spanNs": last - first,
        "gaps": [[begin - profile.start_ns, end - profile.start_ns] for begin, end in profile.gaps],
        "widths": [width for width, _, _ in packed],
        "same": [same for _, same, _ in packed],
        "units": units,
    }
    return PageSamples(header, b"".join(data for _, _, data in packed))


def _span(profile: Profile) -> tuple[int, int]:
    """Return (begin, end) of the flame graph page's timeline, in nanoseconds since the profile's start. It covers the
    profile and all of its samples.
    """
    first, last = (int(time) - profile.start_ns for time in (profile.time_ns.min(), profile.time_ns.max()))
    return min(first, 0), max(last, profile.duration_ns - 1) + 1


def _steps(column: I64, size: int) -> I64:
    return np.diff(column, prepend=0) % size


def _tick_ns(span_ns: int) -> int:
    """Return the length of a tick of the page's timeline in nanoseconds: 1, 2 or 5 times a power of ten, so that round
    times fall on ticks.
    """
    least = max(_MIN_TICK_NS, span_ns >> _TICKS)
    ten = int(10 ** (len(str(least)) - 1))
    return next(part * ten for part in (1, 2, 5, 10) if part * ten >= least)


def _unit(values: I64, period: int) -> int:
    largest = int(values.max()) if len(values) else 0
    if len(values) and largest == int(values.min()):
        return max(1, largest)
    return max(1, period // _STEPS, largest >> _WIDEST)


def _rounded(values: I64, row: I64, unit: int) -> I64:
    """Return values divided by a unit and rounded. The rounding error of each value is added to the next value of the
    same row, so that the sum of a row is exact to half a unit.
    """
    if unit == 1:
        return values
    if values.min(initial=unit) == values.max(initial=unit):
        return values // unit
    by_row = np.argsort(row, kind="stable")
    sums = np.cumsum(values[by_row])
    starts = np.flatnonzero(np.diff(row[by_row], prepend=-1))
    before = np.repeat((sums - values[by_row])[starts], np.diff(np.append(starts, len(row))))
    upto = sums - before
    whole = (upto + unit // 2) // unit - (upto - values[by_row] + unit // 2) // unit
    found = np.empty_like(values)
    found[by_row] = whole
    return found


def _packed(column: I64) -> tuple[int, int, bytes]:
    """Pack numbers that are not negative into a column of bytes.

    Returns:
        (width in bytes, the common number if the width is 0, packed bytes).
    """
    if not len(column) or column.min() == column.max():
        return 0, int(column[0]) if len(column) else 0, b""
    width = (int(column.max()).bit_length() + 7) // 8
    planes = column.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width].T
    return width, 0, planes.tobytes()
