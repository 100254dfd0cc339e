"""What each source line of a profile cost, and each address of code.

A frame is several lines: that of the code itself, and for each function inlined there the line of the call. A line
belongs to the function in which it stands.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pyprof.model.functions import Function, TreeSums, functions_of
from pyprof.model.profile import Frame, FrameKind, Line, Profile
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    """file: "" and line: 0 where not known. module: what people call the function's file, "" if none is known."""

    file: str
    line: int
    function: Function
    module: str


@dataclass(frozen=True, slots=True)
class LineCost:
    """own: as the innermost line; total: somewhere on the stack, each sample counted once."""

    place: SourceLine
    own: int
    total: int


@dataclass(frozen=True, slots=True, order=True)
class CodePlace:
    """An address in a module. rel: that of the instruction, or of a byte of it: callers' lie in their calls. start: rel
    of the beginning of the function whose code it is, without those inlined. name: of that function.
    """

    module: int
    start: int
    rel: int
    name: str


@dataclass(frozen=True, slots=True)
class CodeCost:
    place: CodePlace
    own: int
    total: int


def line_costs(profile: Profile) -> list[LineCost]:
    """Of all lines, dearest own cost first."""
    ids: dict[SourceLine, int] = {}
    rows = [[ids.setdefault(place, len(ids)) for place in _lines(profile, frame)] for frame in profile.frames]
    sums = TreeSums(profile, _own(profile), rows, len(ids))
    found = [LineCost(place, sums.own[at], sums.total[at]) for place, at in ids.items()]
    return sorted(
        (cost for cost in found if cost.own or cost.total), key=lambda cost: (-cost.own, -cost.total, cost.place)
    )


def code_costs(profile: Profile, names: Collection[str]) -> list[CodeCost]:
    """Of all addresses of functions with these names, and of those into which they were inlined, in order."""
    ids: dict[CodePlace, int] = {}
    rows: list[list[int]] = []
    for frame in profile.frames:
        wanted = frame.kind is FrameKind.NATIVE and frame.module >= 0 and _is_of(frame, names)
        outer = frame.lines[-1] if frame.lines else None
        if not wanted or outer is None:
            rows.append([])
            continue
        rel = frame.rel - (frame.pc - frame.lookup)
        place = CodePlace(frame.module, frame.rel - outer.offset, rel, outer.function or outer.system_name)
        rows.append([ids.setdefault(place, len(ids))])
    sums = TreeSums(profile, _own(profile), rows, len(ids))
    return sorted((CodeCost(place, sums.own[at], sums.total[at]) for place, at in ids.items()), key=lambda c: c.place)


def _own(profile: Profile) -> list[int]:
    own = np.zeros(len(profile.parent), np.int64)
    np.add.at(own, profile.stack, profile.values[:, -1])
    found: list[int] = own.tolist()
    return found


def _lines(profile: Profile, frame: Frame) -> list[SourceLine]:
    """Outermost first."""
    found = functions_of(profile, frame)
    lines = frame.lines[::-1] or (Line("", ""),) * len(found)
    return [
        SourceLine((line.file or "") if line.line else "", line.line if line.file else 0, function, module)
        for (function, module), line in zip(found, lines[: len(found)], strict=True)
    ]


def _is_of(frame: Frame, names: Collection[str]) -> bool:
    return any((line.function or line.system_name) in names for line in frame.lines)
