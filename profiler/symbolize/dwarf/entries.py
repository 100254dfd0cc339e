"""Skips entries that are not needed."""

from __future__ import annotations

from pyprof.errors import FormatError
from pyprof.symbolize.dwarf import forms as f
from pyprof.symbolize.dwarf.units import Unit


def skip_attributes(unit: Unit, at: int, abbrev: f.Abbrev) -> int:
    """Return the offset after an entry's attributes."""
    info = unit.info
    data = info.bytes
    try:
        for step in abbrev.steps:
            if step >= 0:
                at += step
            elif step == f.STEP_LEB:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif step == f.STEP_STRING:
                at = data.index(b"\0", at) + 1
            elif step == f.STEP_BLOCK1:
                at += 1 + data[at]
            elif step == f.STEP_BLOCK:
                length, at = info.uleb(at)
                at += length
            else:
                return f.read_attributes(info, at, abbrev, unit.shape)[1]
    except (IndexError, ValueError):
        raise FormatError(info.name, at, "entry past the end") from None
    return at
