"""Collapsed stacks: `root;caller;leaf COUNT`, one line a stack. Names stay as they are written."""

from __future__ import annotations

import re

from pyprof.errors import FormatError
from pyprof.importers.builder import About, Builder, named
from pyprof.model.profile import Frame, FrameKind, Profile, ValueType
from pyprof.model.reasons import said
from pyprof.model.walk import Trust

_LINE = re.compile(r"(.*\S) (\d{1,18})(?:\.\d*)?$")
_LONGEST = 1 << 24
"""Bytes of the first line, which a deep stack makes long."""
_MARKER = re.compile(r"\[[^\]]*\]$")


def is_one(data: bytes) -> bool:
    first = data[:_LONGEST].decode("utf-8", "replace").strip().split("\n", 1)[0].strip()
    return bool(_LINE.fullmatch(first)) and "\0" not in first


def read(data: bytes, title: str) -> Profile:
    """Raises FormatError where no line is a stack."""
    builder = Builder()
    left_out = found = 0
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        match = _LINE.fullmatch(line.rstrip("\r"))
        if match is not None:
            found += 1
            frames = (builder.frame(_frame(name)) for name in match[1].split(";"))
            builder.sample(builder.stack(frames), (int(match[2]),))
        else:
            left_out += bool(line.strip())
    if not found:
        raise FormatError("line", 0, "no line is a stack with a count")
    more = said("lines_left_out", count=f"{left_out:,}") if left_out else ""
    note = said("read_from_collapsed", more=more)
    return builder.build(About(title, (ValueType("samples", "count"),), note, evidence=False))


def _frame(name: str) -> Frame:
    if _MARKER.fullmatch(name):
        return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, name)
    return named(name)
