"""Source lines for the flame graph's page: texts near all lines that have samples, and the lines in each stack.
page.source.js reads them.

A place is a line and the function that contains it. The places of a stack are a chain, stored in a prefix tree of
chains; frames without source text are not in it. With it the page counts any part of the samples by line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.display_names import frame_functions
from pyprof.model.function_costs import Function
from pyprof.model.line_costs import SourceText
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Profile
from pyprof.records import dataclass

_AROUND = 25
"""Number of source lines that the page shows before and after a line with samples."""
_MAX_LETTERS = 1 << 20
"""Maximum number of characters in all source texts of a page; the files with the smallest values are left out."""
_WIDEST = 500
"""Maximum number of characters of a source line on the page."""

Place = tuple[int, int, int]
"""Place in source code: (file, line, function)."""


@dataclass(frozen=True, slots=True)
class PageSource:
    """The source lines for the flame graph's page, and the lines of each stack.

    Attributes:
        document: Data for the JSON. files: [path, 1 if changed after the recording, parts as [first line, texts]].
            file,
            line, frame (of FlameTree): columns of places. parent (as a distance), place: columns of chains.
        key: (nodes of the profile,) twice the number of each stack's chain, plus 1 if its innermost function is in the
            chain's last line.
    """

    document: dict[str, object]
    key: npt.NDArray[np.int64]


def make_page_source(profile: Profile, functions: Sequence[Function], options: ExportOptions) -> PageSource | None:
    """Return the source lines of a profile, or None if there is no text for any of them.

    Args:
        functions: The functions on the page.
    """
    numbers = {function: at for at, function in enumerate(functions)}
    files = {path: at for at, path in enumerate(options.sources)}
    rows: list[list[Place]] = []
    direct: list[bool] = []
    hits: defaultdict[int, set[int]] = defaultdict(set)
    for frame in profile.frames:
        row: list[Place | None] = []
        for function, level in frame_functions(profile, frame, options):
            at = files.get(level.file or "", -1)
            there = at >= 0 and 0 < level.line <= len(options.sources[level.file or ""].lines) and function in numbers
            row.append((at, level.line, numbers[function]) if there else None)
        rows.append([place for place in row if place is not None])
        direct.append(bool(row) and row[-1] is not None)
        for file, line, _ in rows[-1]:
            hits[file].add(line)
    shown = _excerpts(profile, options.sources, hits)
    if not shown:
        return None
    place = {at: number for number, at in enumerate(sorted({at for row in rows for at in row if at[0] in shown}))}
    chains = Tree()
    frame_of = profile.frame.tolist()
    numbered = [[place[at] for at in row if at in place] for row in rows]
    ends = [there and bool(row) and row[-1] in place for there, row in zip(direct, rows, strict=True)]
    used = np.unique(profile.stack).tolist()
    found = np.array(rewrite(profile.parent.tolist(), lambda node: numbered[frame_of[node]], chains, used), np.int64)
    found = 2 * found + np.array([*ends, False])[profile.frame]
    order = {file: number for number, file in enumerate(shown)}
    document = {
        "files": list(shown.values()),
        "file": [order[file] for file, _, _ in place],
        "line": [line for _, line, _ in place],
        "frame": [frame for _, _, frame in place],
        "parent": [node - up for node, up in enumerate(chains.parent)],
        "place": chains.frame,
    }
    return PageSource(document, found)


def _excerpts(
    profile: Profile, texts: Mapping[str, SourceText], hits: Mapping[int, set[int]]
) -> dict[int, list[object]]:
    """Return the shown source lines of each file by its number, as in PageSource.document."""
    shown: dict[int, list[object]] = {}
    room = _MAX_LETTERS
    for at, (path, text) in enumerate(texts.items()):
        if not hits.get(at):
            continue
        parts: list[tuple[int, list[str]]] = []
        for line in sorted(hits[at]):
            end = parts[-1][0] + len(parts[-1][1]) if parts else 1  # the first line that is not shown yet
            first, last = max(line - _AROUND, 1), min(line + _AROUND, len(text.lines))
            if not parts or first > end:
                parts.append((first, []))
                end = first
            parts[-1][1].extend(_short(each) for each in text.lines[end - 1 : last])
        room -= sum(len(each) + 1 for _, lines in parts for each in lines)
        if room < 0:
            break
        changed = text.changed_ns > profile.start_ns + profile.duration_ns
        shown[at] = [path, int(changed), parts]
    return shown


def _short(line: str) -> str:
    line = line.rstrip().expandtabs(4)
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]}…"
