r"""Collapsed stacks: `root;...;leaf COUNT`, one line a stack, sorted by frames from the root.

The count is the number of samples. Characters that would break a line are escaped: `;` as `\x3b`, a line feed as `\n`,
other control characters, line separators and changes of writing direction as `\xNN` or `\uNNNN`.

Lines are made one by one from a tree of names: stacks may be 20,000 frames deep, and all lines at once would not fit in
memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.depth_limit import distinct_stacks, limit_stack_depth
from pyprof.exporters.display_names import UNKNOWN, Level, count_column, frame_levels, root_names, script_name
from pyprof.model.prefix_tree import rewrite
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import CONTROLS, DIRECTIONS

_BREAKS = re.compile(f"[;{CONTROLS}{DIRECTIONS}]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    column = count_column(profile)
    profile = limit_stack_depth(profile, distinct_stacks(profile))
    names = [
        [escape_name(_name(level, options)) for level in frame_levels(profile, frame, options)]
        for frame in profile.frames
    ]
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    tree = _NameTree()
    counts: defaultdict[int, int] = defaultdict(int)
    for names_of_root, samples in _by_root(profile, options).items():
        below = tree.chain(0, [escape_name(name) for name in names_of_root])
        leaves = [leaf for leaf, _ in samples]
        place = rewrite(parent, lambda node: names[frame_of[node]], tree, leaves, below)
        for leaf, values in samples:
            counts[place[leaf]] += int(values[column])
    for line, at in tree.lines(counts):
        out.write(b"%b %d\n" % (line, counts[at]))


def _by_root(
    profile: Profile, options: ExportOptions
) -> dict[tuple[str, ...], list[tuple[int, npt.NDArray[np.int64]]]]:
    """Group the samples of a profile by the root names of their output lines: process and thread, if the options
    request them.

    Returns:
        For each tuple of names, outermost first, a list of (leaf node of the stack, summed values of its samples).
    """
    names = [tuple(root_names(profile, thread, options)) for thread in profile.threads]
    found: defaultdict[tuple[str, ...], list[tuple[int, npt.NDArray[np.int64]]]] = defaultdict(list)
    for thread, leaf, values in profile.totals():
        found[names[thread]].append((leaf, values))
    return found


def _name(level: Level, options: ExportOptions) -> str:
    """Return the name of a function in a line of collapsed stacks. The name of an interpreter's function includes its
    file.
    """
    script = script_name(level, options)
    return f"{level.name} ({script})" if script else level.name


class _NameTree:
    """A prefix tree of function names. The lines of output are made from it in sorted order. Node 0 is its root."""

    def __init__(self) -> None:
        self._children: list[dict[bytes, int]] = [{}]

    def child(self, node: int, name: bytes) -> int:
        below = self._children[node]
        if name not in below:
            below[name] = len(self._children)
            self._children.append({})
        return below[name]

    def chain(self, node: int, names: list[bytes]) -> int:
        """Add a path of names below a node of the tree, outermost first, and return the node of the last name."""
        for name in names:
            node = self.child(node, name)
        return node

    def lines(self, wanted: dict[int, int]) -> Iterator[tuple[bytes, int]]:
        """Yield (names from the root joined by semicolons, node) for each node with a non-zero value in `wanted`,
        sorted by names.
        """
        path: list[bytes] = []
        todo = [(0, 0, b"")]
        while todo:
            node, depth, name = todo.pop()
            path[max(depth - 1, 0) :] = [name] if depth else []
            if wanted.get(node):
                yield b";".join(path) or UNKNOWN.encode(), node
            below = self._children[node]
            todo.extend((below[child], depth + 1, child) for child in sorted(below, reverse=True))


def escape_name(name: str) -> bytes:
    r"""Encode a name as UTF-8, with characters escaped that separate names or lines. Lone surrogates, from file names
    that are not UTF-8, become `\udcNN`.
    """
    return _BREAKS.sub(_escaped, name).encode("utf-8", "backslashreplace")


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")
