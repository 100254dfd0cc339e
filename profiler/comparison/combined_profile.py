"""Both sides of a comparison as one profile.

It consists of functions, not addresses. Each stack of either side is a stack of matched functions and has two values,
before and after, one of which is 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.comparison.result import Comparison
from pyprof.model.marker_frames import Mark
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ValueType
from pyprof.model.walk import Trust
from pyprof.records import replace

_UNITS = {"nanoseconds": "nanoseconds", "count": "samples"}


def both(comparison: Comparison) -> Profile:
    """Return one profile with the samples of both sides of a comparison, without times."""
    frames, modules = _frames(comparison)
    markers: dict[tuple[str, Mark | None], int] = {}
    tree = Tree()
    stacks = []
    sides = (comparison.before, comparison.matching.before), (comparison.after, comparison.matching.after)
    for profile, rows in sides:
        found = [
            row or [markers.setdefault((frame.title, frame.mark), len(frames) + len(markers))]
            for row, frame in zip(rows, profile.frames, strict=True)
        ]
        stacks.append(_placed(profile, found, tree))
    before, after = comparison.before, comparison.after
    numbers = [len(before.stack), len(after.stack)]
    values = np.zeros((sum(numbers), 2), np.int64)
    values[: numbers[0], 0] = before.values[:, comparison.columns[0]]
    values[numbers[0] :, 1] = after.values[:, comparison.columns[1]]
    unit = "share" if comparison.scale.way == "samples" else _UNITS.get(comparison.value_type.unit, "samples")
    cut = [Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, title, mark) for title, mark in markers]
    return replace(
        after,
        value_types=(ValueType("before", unit), ValueType("after", unit)),
        title=f"{before.title} → {after.title}" if before.title != after.title else after.title,
        frames=(*frames, *cut),
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        modules=modules,
        threads=before.threads + after.threads,
        time_ns=np.full(sum(numbers), after.start_ns, np.int64),
        stack=np.concatenate(stacks),
        thread=np.concatenate([before.thread, after.thread + np.int32(len(before.threads))]),
        values=values,
        state=None,
        cpu=None,
    )


def _placed(profile: Profile, rows: list[list[int]], tree: Tree) -> npt.NDArray[np.int32]:
    """Add the stacks of a profile's samples to the common tree, and return the node of each sample."""
    frame_of = profile.frame.tolist()
    leaves, inverse = np.unique(profile.stack, return_inverse=True)
    place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], tree, leaves.tolist())
    return np.array([place[leaf] for leaf in leaves.tolist()], np.int32)[inverse]


def _frames(comparison: Comparison) -> tuple[list[Frame], tuple[ModuleInfo, ...]]:
    """Return one frame for each function of a comparison, which its kind, file and name identify, and their modules."""
    sources: dict[int, str | None] = {}
    matching = comparison.matching
    for profile, rows in ((comparison.before, matching.before), (comparison.after, matching.after)):
        for row, frame in zip(rows, profile.frames, strict=True):
            sources.update(zip(row, (line.file for line in reversed(frame.lines)), strict=False))
    modules: dict[str, int] = {}
    frames = []
    for at, function in enumerate(matching.functions):
        native = function.kind == FrameKind.NATIVE and function.place
        module = modules.setdefault(function.place, len(modules)) if native else -1
        file = function.place if function.kind == FrameKind.INTERPRETER and function.place else sources.get(at)
        line = Line(function.name, function.name, 0, file)
        frames.append(Frame(function.kind, 0, 0, 0, module, (line,), Trust.CONTEXT, function.name))
    return frames, tuple(ModuleInfo(path, "", 0, 0, 0, True, False) for path in modules)
