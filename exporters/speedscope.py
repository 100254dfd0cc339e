"""speedscope's JSON (npm speedscope, dist/release/file-format-schema.json), type "sampled".

With ExportOptions.threads the file has one profile for each thread and shows the heaviest one first. Otherwise all
threads are in one profile, one after the other, each in its own time order. Weights are the primary value. A frame's
file is its source file, or its module if that is not known. A frame has a line only if all its occurrences have the
same, because speedscope adds up by frame, and different lines would split the function. A function is one frame for all
mappings.

Samples are written one by one: stacks may be 20,000 frames deep, and all of them at once would not fit in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pyprof.errors import OutputError
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.depth_limit import limit_stack_depth
from pyprof.exporters.display_names import frame_functions, module_name, root_names, thread_name
from pyprof.model.analysis.function_costs import Function
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import clean_text, dump_json

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = frozenset({"nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"})
"""Units of weights that speedscope knows. Other units are written as "none"."""

_AT_ONCE = 4096
"""Number of samples that are converted to Python objects at a time when a speedscope file is written."""


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as speedscope's JSON.

    Raises:
        OutputError: A weight is negative (in a difference of two profiles): speedscope refuses such a file.
    """
    column = len(profile.value_types) - 1
    weights = profile.values[:, column]
    if weights.size and int(weights.min()) < 0:
        raise OutputError("speedscope cannot show negative weights", "-f collapsed, or -f pprof")
    groups, names, active = _groups(profile, options, weights)
    profile = limit_stack_depth(profile, profile.stack[weights > 0])
    frames, frame_indices = _frames(profile, options)
    unit = profile.value_types[column].unit

    out.write(b'{"$schema":' + dump_json(SCHEMA) + b',"name":' + dump_json(profile.title))
    out.write(b',"exporter":"pyprof","activeProfileIndex":%d,"shared":{"frames":' % active)
    out.write(dump_json(frames) + b'},"profiles":[')
    fragment = _fragments(profile, frame_indices)
    for at, (name, samples) in enumerate(zip(names, groups, strict=True)):
        chosen = weights[samples]
        out.write(b"," if at else b"")
        out.write(b'{"type":"sampled","name":' + dump_json(name))
        out.write(b',"unit":' + dump_json(unit if unit in UNITS else "none"))
        out.write(b',"startValue":0,"endValue":%d,"samples":[' % int(chosen.sum()))
        for at_once in range(0, len(samples), _AT_ONCE):
            leaves = profile.stack[samples[at_once : at_once + _AT_ONCE]].tolist()
            for nth, leaf in enumerate(leaves, at_once):
                out.write(b",[" if nth else b"[")
                out.write(fragment(leaf))
                out.write(b"]")
        out.write(b'],"weights":[')
        for at_once in range(0, len(chosen), _AT_ONCE):
            out.write(b"," if at_once else b"")
            out.write(dump_json(chosen[at_once : at_once + _AT_ONCE].tolist())[1:-1])
        out.write(b"]}")
    out.write(b"]}\n")


def _groups(
    profile: Profile, options: ExportOptions, weights: npt.NDArray[np.int64]
) -> tuple[list[npt.NDArray[np.int64]], list[str], int]:
    """Divide the samples into the profiles of the speedscope file. Return the sample indices of each, their names, and
    the index of the profile that is shown first.

    Samples without weight are left out: speedscope ignores them, and a sleeping thread has many.
    """
    by_thread = np.argsort(profile.thread, kind="stable")
    by_thread = by_thread[weights[by_thread] > 0]
    several = profile.has_processes
    if not options.threads and not (options.processes and several):
        return [by_thread], [_title(profile)], 0
    members: dict[object, list[int]] = {}
    for index, thread in enumerate(profile.threads):
        members.setdefault(index if options.threads else thread.process_key, []).append(index)
    groups: list[npt.NDArray[np.int64]] = []
    names: list[str] = []
    heaviest, active = -1, 0
    for threads in members.values():
        samples = by_thread[np.isin(profile.thread[by_thread], threads)]
        if not samples.size:
            continue
        weight = int(weights[samples].sum())
        if weight > heaviest:
            heaviest, active = weight, len(groups)
        groups.append(samples)
        names.append(": ".join(root_names(profile, profile.threads[threads[0]], options)))
    if not groups:
        return [by_thread], [_title(profile)], 0
    return groups, names, active


def _title(profile: Profile) -> str:
    if len(profile.threads) == 1:
        return thread_name(profile.threads[0])
    return f"all {len(profile.threads)} threads"


def _frames(profile: Profile, options: ExportOptions) -> tuple[list[dict[str, str | int]], list[bytes]]:
    """Return speedscope's list shared.frames. Also return, for each frame of the profile, the indices of its functions
    in that list as JSON, outermost first.
    """
    index: dict[Function, int] = {}
    seen: list[Counter[tuple[str, str, int]]] = []
    fragments = []
    for frame in profile.frames:
        indices = []
        for function, level in frame_functions(profile, frame, options):
            at = index.setdefault(function, len(index))
            if at == len(seen):
                seen.append(Counter())
            file = clean_text(level.file or module_name(profile, level.module, options))
            seen[at][clean_text(level.name), file, level.line if level.file else 0] += 1
            indices.append(at)
        fragments.append(b",".join(b"%d" % at for at in indices))
    return [_entry(places) for places in seen], fragments


def _entry(places: Counter[tuple[str, str, int]]) -> dict[str, str | int]:
    """Return the speedscope frame for a function, with the name and file that most of its occurrences have.

    Args:
        places: Number of occurrences by (name, file, line).
    """
    name, file, _ = places.most_common(1)[0][0]
    entry: dict[str, str | int] = {"name": name}
    if file:
        entry["file"] = file
    lines = {line for _, _, line in places}
    if len(lines) == 1 and (line := lines.pop()) > 0:
        entry["line"] = line
    return entry


def _fragments(profile: Profile, frame_indices: list[bytes]) -> Callable[[int], bytes]:
    """Return a function from a stack's leaf node to the frames of the stack as speedscope's JSON, outermost first.

    The function caches a few results, because stacks repeat.
    """
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()

    @lru_cache(maxsize=64)
    def fragment(leaf: int) -> bytes:
        stack = []
        node = leaf
        while node > 0:
            stack.append(frame_indices[frame_of[node]])
            node = parent[node]
        return b",".join(reversed(stack))

    return fragment
