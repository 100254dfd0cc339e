"""Costs of each source line and each code address of a profile, and a source file as it was read.

A frame counts for several lines: the line of the code itself, and the line of the call for each inlined function. A
line belongs to the function that contains it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.function_costs import Function, TreeSums, functions_of
from pyprof.model.profile import Frame, FrameKind, Line, Profile


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    """A source line of a function in a profile.

    Attributes:
        file: Path of the file, "" if unknown.
        line: Number of the line, 0 if unknown.
        function: The function that contains it.
        module: Name of the function's file as users call it, "" if unknown.
    """

    file: str
    line: int
    function: Function
    module: str


@dataclass(frozen=True, slots=True)
class LineCost:
    """The cost of a source line: `own` in samples taken in the line itself, `total` in samples with the line anywhere
    on the stack. Each sample counts once.
    """

    place: SourceLine
    own: int
    total: int


@dataclass(frozen=True, slots=True, order=True)
class CodePlace:
    """The address of an instruction in a module of a profile.

    Attributes:
        module: Index of the module.
        start: Start of the real (not inlined) function, relative to the module's base.
        rel: Address of the instruction relative to the module's base; for a caller the last byte of its call.
        name: Name of the real function.
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
    """Return the costs of all source lines of a profile, most expensive own cost first."""
    ids: dict[SourceLine, int] = {}
    rows = [[ids.setdefault(place, len(ids)) for place in _lines(profile, frame)] for frame in profile.frames]
    sums = TreeSums(profile, _own(profile), rows, len(ids))
    found = [LineCost(place, sums.own[at], sums.total[at]) for place, at in ids.items()]
    return sorted(
        (cost for cost in found if cost.own or cost.total), key=lambda cost: (-cost.own, -cost.total, cost.place)
    )


def code_costs(profile: Profile, names: Collection[str]) -> list[CodeCost]:
    """Return the costs of all code addresses in the named functions, and in the functions into which these were
    inlined, sorted by address.
    """
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
    """Return the source lines of a frame, that of the outermost function first."""
    found = functions_of(profile, frame)
    lines = frame.lines[::-1] or (Line("", ""),) * len(found)
    return [
        SourceLine((line.file or "") if line.line else "", line.line if line.file else 0, function, module)
        for (function, module), line in zip(found, lines[: len(found)], strict=True)
    ]


def _is_of(frame: Frame, names: Collection[str]) -> bool:
    return any((line.function or line.system_name) in names for line in frame.lines)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A source file as it was read.

    Attributes:
        path: Path at which the file was found.
        lines: Its lines.
        changed_ns: Time of its last modification, in nanoseconds since the epoch.
    """

    path: str
    lines: tuple[str, ...]
    changed_ns: int
