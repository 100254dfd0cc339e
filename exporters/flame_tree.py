"""The profile as the flame graph's page wants it: functions instead of addresses, in flat columns.

Addresses of one function under one caller become one node, for all mappings and processes. Nothing else is merged,
sorted or left out: each (thread, leaf) pair keeps its values, so that the page can group and hide threads with exact
totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.display_names import Level, frame_functions, module_name, script_name
from pyprof.exporters.page_source import PageSource, make_page_source
from pyprof.exporters.startup_frames import start_nodes
from pyprof.model.columns import numbered
from pyprof.model.function_costs import Function, are_application
from pyprof.model.marker_frames import UNSAMPLED
from pyprof.model.prefix_tree import rewrite
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.records import dataclass, field

FrameRow = tuple[str, str, int, FrameKind]
"""Row of a flame graph: (name, name of the module or of its group, index into Profile.modules or -1, kind), from the
function's first frame.
"""

CALLED, INLINED = 1, 2
"""Bits that say whether the function of a flame graph's node was called or inlined."""


@dataclass
class FlameTree:
    """The flat columns of data from which the page draws a flame graph.

    Attributes:
        frames: One entry for each function: name, module group, module index, kind.
        application: Whether each function belongs to the application (model/application_code.py).
        parent: Parent of each node; parents come first, node 0 is the root.
        frame: Index into frames of each node, -1 for the root.
        how: CALLED, INLINED or both, for each node.
        start: Nodes that start programs and threads (startup_frames.py).
        trust: Bit set of Trust values of each node.
        place: "file:line" of the heaviest address of each node, or "".
        places: Number of different "file:line" of each node.
        leaf: Node of each row; a row is a thread, a leaf and a chain of source lines.
        thread: Thread of each row.
        values: One column of values for each value type.
        row: (samples,) int64, row of each sample of the profile.
        functions: Identity of each entry in frames.
        source: Source lines with their text, None if there are none.
        lines: PageSource.key of each row.
    """

    frames: list[FrameRow] = field(default_factory=list)
    application: list[bool] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [-1])
    frame: list[int] = field(default_factory=lambda: [-1])
    how: list[int] = field(default_factory=lambda: [0])
    start: set[int] = field(default_factory=set)
    trust: list[int] = field(default_factory=lambda: [0])
    place: list[str] = field(default_factory=lambda: [""])
    places: list[int] = field(default_factory=lambda: [0])
    leaf: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    values: list[list[int]] = field(default_factory=list)
    row: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    functions: list[Function] = field(default_factory=list)
    source: PageSource | None = None
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """One function of a frame before it is added to the flame graph's tree.

    Attributes:
        frame: Index into FlameTree.frames.
        level: Name and place of the function.
        trust: Trust of the frame.
        weight: Value of all samples at or below the frame's node.
    """

    frame: int
    level: Level
    trust: int
    weight: int


class _Builder:
    """A builder that adds rows to a FlameTree, and keeps what is known of a node beyond the tree's columns."""

    def __init__(self, tree: FlameTree) -> None:
        self.tree = tree
        self.levels: list[Level | None] = [None]
        self._children: dict[tuple[int, int], int] = {}
        self._best: list[int] = [0]
        self._places: list[set[str]] = [set()]

    def child(self, parent: int, row: _Row) -> int:
        """Return the node of a row's function below a parent in the flame graph's tree, and merge the row into it."""
        tree = self.tree
        node = self._children.setdefault((parent, row.frame), len(tree.parent))
        if node == len(tree.parent):
            tree.parent.append(parent)
            tree.frame.append(row.frame)
            tree.how.append(0)
            tree.trust.append(0)
            tree.place.append("")
            self._best.append(-1)
            self._places.append(set())
            self.levels.append(row.level)
        tree.trust[node] |= 1 << row.trust
        tree.how[node] |= INLINED if row.level.kind == FrameKind.INLINE else CALLED
        place = _place(row.level)
        if place:
            self._places[node].add(place)
            if row.weight > self._best[node]:
                self._best[node], tree.place[node] = row.weight, place
        return node

    def places(self) -> list[int]:
        return [len(places) for places in self._places]


def build_flame_tree(profile: Profile, options: ExportOptions) -> FlameTree:
    """Build the flame graph's tree of a profile, without nodes that no sample reaches."""
    tree = FlameTree()
    builder = _Builder(tree)
    ids: dict[Function, int] = {}
    found: list[list[tuple[int, Level]] | None] = [None] * len(profile.frames)
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    totals = [(thread, leaf, values.tolist()) for thread, leaf, values in profile.totals()]
    weight, used = _weights(parent, totals)

    def rows(node: int) -> Iterator[_Row]:
        at = frame_of[node]
        frame = profile.frames[at]
        functions = found[at]
        if functions is None:
            functions = found[at] = _levels(tree, ids, profile, frame, options)
        for function, level in functions:
            yield _Row(function, level, frame.trust, weight[node])

    merged = rewrite(parent, rows, builder, (node for node in range(1, len(parent)) if used[node]))
    tree.places = builder.places()
    tree.source = make_page_source(profile, tree.functions, options) if options.sources else None
    _add_samples(tree, profile, np.array(merged, np.int64))
    rows_of_tree = zip(tree.thread, tree.leaf, zip(*tree.values, strict=True), strict=True)
    tree.start = start_nodes(profile, tree.parent, builder.levels, _weights(tree.parent, list(rows_of_tree))[0])
    return tree


def _weights(parent: list[int], totals: Iterable[tuple[int, int, Sequence[int]]]) -> tuple[list[int], list[bool]]:
    """Return for each node of a tree the primary value at or below it, and whether any sample is there."""
    weight = [0] * len(parent)
    used = [False] * len(parent)
    for _, leaf, values in totals:
        weight[leaf] += abs(values[-1])
        used[leaf] = True
    for node in range(len(parent) - 1, 0, -1):
        if used[node]:
            weight[parent[node]] += weight[node]
            used[parent[node]] = True
    return weight, used


def _add_samples(tree: FlameTree, profile: Profile, merged: npt.NDArray[np.int64]) -> None:
    """Fill the sample columns of the flame graph's tree.

    Args:
        merged: (nodes of the profile,) node of the tree that each became.
    """
    key = tree.source.key if tree.source else np.zeros(len(merged), np.int64)
    keys = int(key.max(initial=0)) + 1
    pairs = (profile.thread * np.int64(len(tree.parent)) + merged[profile.stack]) * keys + key[profile.stack]
    found, tree.row = numbered(pairs)
    tree.lines = (found % keys).tolist() if tree.source else []
    found //= keys
    tree.thread = (found // len(tree.parent)).tolist()
    tree.leaf = (found % len(tree.parent)).tolist()
    sums = np.zeros((len(found), len(profile.value_types)), np.int64)
    np.add.at(sums, tree.row, profile.values)
    tree.values = sums.T.tolist()


def _levels(
    tree: FlameTree, ids: dict[Function, int], profile: Profile, frame: Frame, options: ExportOptions
) -> list[tuple[int, Level]]:
    """Return (index into tree.frames, level) of each function of a frame, outermost first."""
    found = []
    named = frame_functions(profile, frame, options)
    for (function, level), is_own in zip(named, are_application(profile, frame) or [False] * len(named), strict=True):
        at = ids.setdefault(function, len(ids))
        if at == len(tree.frames):
            group = module_name(profile, level.module, options) or script_name(level, options)
            group = group or ("[not sampled]" if frame.mark in UNSAMPLED else _GROUPS.get(level.kind, "[unknown]"))
            tree.functions.append(function)
            tree.frames.append((level.name, group, level.module, function.kind))
            tree.application.append(is_own)
        found.append((at, level))
    return found


_GROUPS = {FrameKind.KERNEL: "[kernel]", FrameKind.INTERPRETER: "[interpreter]", FrameKind.MARKER: "[cut short]"}
"""Color groups in the flame graph of frames outside every module."""


def _place(level: Level) -> str:
    if not level.file:
        return ""
    return f"{level.file}:{level.line}" if level.line else level.file
