"""Collapsed stacks: `root;caller;leaf COUNT`, one line a stack. Names stay as they are written."""

from __future__ import annotations

import re
from io import BytesIO

from pyprof.errors import FormatError
from pyprof.importers.profile_builder import About, Builder, function_frame
from pyprof.model.profile import Frame, FrameKind, Profile, ValueType
from pyprof.model.reasons import said
from pyprof.model.walk import Trust

_LINE = re.compile(r"(.*\S) (\d{1,18})(?:\.\d*)?$")
_LONGEST = 1 << 24
"""Maximum length of the first line of a collapsed file in bytes; a deep stack makes it long."""
MAX_DEPTH = 1 << 20
"""Maximum number of frames of one collapsed stack: the largest depth that `pyprof record` writes by default."""
_MAX_CACHED_LETTERS = 1 << 26
"""Maximum number of letters of the collapsed stacks whose nodes are cached by their text."""
_MARKER = re.compile(r"\[[^\]]*\]$")


def is_collapsed(data: bytes) -> bool:
    first = data[:_LONGEST].decode("utf-8", "replace").strip().split("\n", 1)[0].strip()
    return bool(_LINE.fullmatch(first)) and "\0" not in first


def read_collapsed(data: bytes, title: str) -> Profile:
    """Read a file of collapsed stacks as a Profile.

    Raises:
        FormatError: No line is a stack, or a stack is too deep.
        OverflowError: The stacks have more calls than a profile holds.
    """
    stacks = _Stacks()
    left_out = found = 0
    for row in BytesIO(data):
        line = row.decode("utf-8", "surrogateescape").rstrip("\r\n")
        match = _LINE.fullmatch(line)
        if match is not None:
            found += 1
            stacks.builder.add_sample(stacks.find(match[1]), (int(match[2]),))
        else:
            left_out += bool(line.strip())
    if not found:
        raise FormatError("line", 0, "no line is a stack with a count")
    more = said("lines_left_out", count=f"{left_out:,}") if left_out else ""
    note = said("read_from_collapsed", more=more)
    return stacks.builder.build(About(title, (ValueType("samples", "count"),), note, evidence=False))


class _Stacks:
    """The stacks of one collapsed file. It makes each frame once, and reads a repeated stack once."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._frames: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        self._cached_letters = 0

    def find(self, text: str) -> int:
        """Return the node of a stack such as `root;caller;leaf`.

        Raises:
            FormatError: The stack is too deep.
            OverflowError: The tree has too many nodes.
        """
        node = self._nodes.get(text)
        if node is None:
            if text.count(";") >= MAX_DEPTH:
                raise FormatError("line", 0, f"a stack of more than {MAX_DEPTH:,} frames")
            node = self.builder.add_stack([self._frame(name) for name in text.split(";")])
            self._cached_letters += len(text)
            if self._cached_letters > _MAX_CACHED_LETTERS:
                self._nodes.clear()
                self._cached_letters = len(text)
            self._nodes[text] = node
        return node

    def _frame(self, name: str) -> int:
        index = self._frames.get(name)
        if index is None:
            index = self._frames[name] = self.builder.add_frame(_frame(name))
        return index


def _frame(name: str) -> Frame:
    if _MARKER.fullmatch(name):
        return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, name)
    return function_frame(name)
