r"""Collapsed stacks: `root;...;leaf COUNT`, one line a stack, sorted.

The count is of samples. What would break a line is escaped: `;` as `\x3b`, a line feed as `\n`, other control
characters and line separators as `\xNN` or `\uNNNN`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.names import count_column, levels, thread_roots
from pyprof.model.profile import Profile

_BREAKS = re.compile("[;\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    column = count_column(profile)
    names = [b";".join(escape(level.name) for level in levels(profile, frame, options)) for frame in profile.frames]
    roots = [
        [escape(name) for name in thread_roots(profile, thread)] if options.threads else []
        for thread in profile.threads
    ]
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    counts: Counter[bytes] = Counter()
    for thread, leaf, values in profile.totals():
        stack = []
        node = leaf
        while node > 0:
            stack.append(names[frame_of[node]])
            node = parent[node]
        stack.extend(reversed(roots[thread]))
        counts[b";".join(reversed(stack))] += int(values[column])
    for line, count in sorted(counts.items()):
        if count:
            out.write(b"%b %d\n" % (line, count))


def escape(name: str) -> bytes:
    """UTF-8 that holds no separator; lone surrogates (file names that are no UTF-8) as `\\udcNN`."""
    return _BREAKS.sub(_escaped, name).encode("utf-8", "backslashreplace")


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")
