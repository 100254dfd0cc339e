r"""Collapsed stacks: `root;...;leaf COUNT`, one line a stack, sorted by frames from the root.

The count is of samples. What would break a line is escaped: `;` as `\x3b`, a line feed as `\n`, other control
characters, line separators and changes of writing direction as `\xNN` or `\uNNNN`.

Lines are made one by one from a tree of names: stacks may be 20,000 frames deep, and all lines at once would not
fit in memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.bounded import bounded, distinct_stacks
from pyprof.exporters.names import UNKNOWN, Level, count_column, levels, roots, script_name
from pyprof.model.profile import Profile
from pyprof.model.text import CONTROLS, DIRECTIONS

_BREAKS = re.compile(f"[;{CONTROLS}{DIRECTIONS}]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    column = count_column(profile)
    profile = bounded(profile, distinct_stacks(profile))
    names = [[escape(_name(level, options)) for level in levels(profile, frame, options)] for frame in profile.frames]
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    tree = _NameTree()
    counts: defaultdict[int, int] = defaultdict(int)
    known: dict[tuple[int, int], int] = {}
    for thread, leaf, values in profile.totals():
        root = tree.descend(0, [escape(name) for name in roots(profile, profile.threads[thread], options)])
        path = []
        node = leaf
        while node > 0 and (root, node) not in known:
            path.append(node)
            node = parent[node]
        at = known[root, node] if node > 0 else root
        for node in reversed(path):
            at = known[root, node] = tree.descend(at, names[frame_of[node]])
        counts[at] += int(values[column])
    for line, at in tree.lines(counts):
        out.write(b"%b %d\n" % (line, counts[at]))


def _name(level: Level, options: ExportOptions) -> str:
    """An interpreter's function with its file: there are many `main` and `<module>`."""
    script = script_name(level, options)
    return f"{level.name} ({script})" if script else level.name


class _NameTree:
    """A prefix tree of names; node 0 is its root."""

    def __init__(self) -> None:
        self._children: list[dict[bytes, int]] = [{}]

    def descend(self, node: int, names: list[bytes]) -> int:
        for name in names:
            below = self._children[node]
            if name not in below:
                below[name] = len(self._children)
                self._children.append({})
            node = below[name]
        return node

    def lines(self, wanted: dict[int, int]) -> Iterator[tuple[bytes, int]]:
        """(names joined, node) of each node that has a wanted value, by names."""
        path: list[bytes] = []
        todo = [(0, 0, b"")]
        while todo:
            node, depth, name = todo.pop()
            path[max(depth - 1, 0) :] = [name] if depth else []
            if wanted.get(node):
                yield b";".join(path) or UNKNOWN.encode(), node
            below = self._children[node]
            todo.extend((below[child], depth + 1, child) for child in sorted(below, reverse=True))


def escape(name: str) -> bytes:
    """UTF-8 that holds no separator; lone surrogates (file names that are no UTF-8) as `\\udcNN`."""
    return _BREAKS.sub(_escaped, name).encode("utf-8", "backslashreplace")


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")
