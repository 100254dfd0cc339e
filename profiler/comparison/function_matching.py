"""Finds the functions that two profiles have in common, whatever their address, build or folder.

A function is identified by its name, the path of its file, and its kind. Functions that remain are matched by the
file's name without folder and version, and then by the function's name alone, if exactly one function in each profile
has it. A function without a name has only an address. It is identified in the same build of its file; in different
builds all such functions count as one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import base_name
from pyprof.model.analysis.function_costs import functions_of, kind_of
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile

NAMELESS = "[functions without a name]"

_CLONE = re.compile(r"(\.(isra|constprop|part|cold|lto_priv|llvm)(\.\d+)*)+$")
_CLONE_WORDS = re.compile(r"( \[clone [^\]]{1,80}\]| \(\.(isra|constprop|part|cold|lto_priv|llvm)[.\d]*\))+$")
_HASH = re.compile(r"::h[0-9a-f]{16}$")
_VERSION = re.compile(r"(-\d[\d.]*)?\.so([.\d]*)$")
_MAX_END = 512
"""Number of characters at the end of a function name in which suffixes of compilers, such as ".isra.0", are
searched.
"""


@dataclass(frozen=True, slots=True, order=True)
class MatchedFunction:
    """A function that one or both of two compared profiles have.

    Attributes:
        name: Name without suffixes of compilers, such as ".isra.0".
        module: File name of its object file or script.
        place: Path of its object file, or of the script for an interpreter function; "" if it is unknown.
        kind: Kind of its frames.
    """

    name: str
    module: str
    place: str
    kind: FrameKind


@dataclass(frozen=True, slots=True)
class Matching:
    """The functions of two profiles, matched by name and file.

    Attributes:
        functions: All functions.
        before: For each frame of the first profile the indices of its functions, outermost first; empty for a marker.
        after: For each frame of the second profile the indices of its functions, as in `before`.
    """

    functions: tuple[MatchedFunction, ...]
    before: list[list[int]]
    after: list[list[int]]


def plain_name(name: str) -> str:
    """Return a function name without Rust's hash and without suffixes that compilers give to copies of a function, such
    as ".isra.0".
    """
    begin, end = name[:-_MAX_END], name[-_MAX_END:]
    return begin + _HASH.sub("", _CLONE_WORDS.sub("", _CLONE.sub("", end))) or name


def plain_module(name: str) -> str:
    """Return the name of a file without folder and version: libz.so for libz.so.1.2.13, libc.so for libc-2.31.so."""
    return _VERSION.sub(".so", base_name(name))


def matching(before: Profile, after: Profile) -> Matching:
    sides = _functions(before, after.modules), _functions(after, before.modules)
    old, new = ({function: None for row in rows for function in row} for rows in sides)
    same = {function: function for function in old if function in new}
    for key in (_by_module, _by_name):
        unique = [_unique((f for f in side if f not in same), key) for side in (old, new)]
        taken = set(same.values())
        for found, function in unique[0].items():
            other = unique[1].get(found)
            if other is not None and other not in taken:
                same[function] = other
    ids: dict[MatchedFunction, int] = {}
    rows_after = [[ids.setdefault(f, len(ids)) for f in row] for row in sides[1]]
    rows_before = [[ids.setdefault(same.get(f, f), len(ids)) for f in row] for row in sides[0]]
    return Matching(tuple(ids), rows_before, rows_after)


def _by_module(function: MatchedFunction) -> Hashable:
    return function.kind, plain_module(function.place), function.name


def _by_name(function: MatchedFunction) -> Hashable:
    return (function.kind, function.name) if function.name != NAMELESS else function


def _unique(
    functions: Iterable[MatchedFunction], key: Callable[[MatchedFunction], Hashable]
) -> dict[Hashable, MatchedFunction]:
    """Index functions by a key. Functions that share their key with another one are left out."""
    found: defaultdict[Hashable, list[MatchedFunction]] = defaultdict(list)
    for function in functions:
        found[key(function)].append(function)
    return {key: members[0] for key, members in found.items() if len(members) == 1}


def _functions(profile: Profile, others: tuple[ModuleInfo, ...]) -> list[list[MatchedFunction]]:
    """Return the functions of each frame of a profile, with names and files that can be matched with those of another
    profile.

    Args:
        profile: The profile.
        others: Modules of the other profile.
    """
    builds = {info.build_id or info.path for info in others}
    return [
        [_named(profile, frame, function.name, function.where, module, builds) for function, module in functions]
        for frame in profile.frames
        for functions in (functions_of(profile, frame),)
    ]


def _named(profile: Profile, frame: Frame, name: str, where: str, module: str, builds: set[str]) -> MatchedFunction:
    kind = kind_of(profile, frame)
    if kind != FrameKind.NATIVE:
        return MatchedFunction(name, module, where, kind)
    place = profile.modules[frame.module].path if frame.module >= 0 else ""
    nameless = not frame.lines or not any(line.system_name for line in frame.lines)
    if nameless and not (frame.module >= 0 and where in builds):
        name = NAMELESS
    return MatchedFunction(plain_name(name), module, place, kind)
