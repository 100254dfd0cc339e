"""Reader of collapsed stacks: `root;caller;leaf COUNT`, one line a stack. Names stay as they are written."""

from __future__ import annotations

import re
from array import array
from io import BytesIO

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.importers.profile_builder import MAX_NODES, NOBODY, About, Builder, function_frame
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Frame, FrameKind, Profile, ValueType
from pyprof.model.unwind_result import Trust

_LINE = re.compile(r"(.*\S) (\d{1,18})(?:\.\d*)?$")
_LONGEST = 1 << 24
"""Maximum length in bytes of the first line of a file of collapsed stacks; a deep stack makes it long."""
MAX_DEPTH = 1 << 20
"""Maximum number of frames of one collapsed stack: the largest depth that `pyprof record` writes by default."""
_MAX_CACHED_LETTERS = 1 << 24
"""Maximum number of characters of the collapsed stacks whose tree nodes are cached by the stack's text."""
_CHUNK = 1 << 20
"""Number of bytes of a file of collapsed stacks that are processed at once to estimate its number of calls."""
_ONE_OF_BITS = 6
"""Binary logarithm of N, where the estimate of distinct calls counts one of N calls."""
_MARGIN = 1.1
"""Ratio of the estimated number of calls to the maximum (MAX_NODES) above which a file is refused. The standard error
of the estimate is below 0.5 %.
"""
_FACTOR = 0x9E3779B97F4A7C15
"""Odd base of the polynomial hash, modulo 2**64, by which distinct calls in a file of collapsed stacks are counted."""
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
    if _has_too_many_calls(data):
        raise OverflowError(f"more than {MAX_NODES:,} different calls")
    stacks = _Stacks()
    left_out = 0
    nodes, counts = array("q"), array("q")
    for row in BytesIO(data):
        line = row.decode("utf-8", "surrogateescape").rstrip("\r\n")
        match = _LINE.fullmatch(line)
        if match is not None:
            nodes.append(stacks.find(match[1]))
            counts.append(int(match[2]))
        else:
            left_out += bool(line.strip())
    if not nodes:
        raise FormatError("line", 0, "no line is a stack with a count")
    thread = stacks.builder.add_thread(NOBODY)
    stacks.builder.add_samples(nodes, [thread] * len(nodes), 0, np.array(counts, np.int64))
    notes = (make_note("read_from_collapsed"), *((make_note("lines_left_out", count=left_out),) if left_out else ()))
    return stacks.builder.build(About(title, (ValueType("samples", "count"),), notes, evidence=False))


def _has_too_many_calls(data: bytes) -> bool:
    """Return True if the stacks of a file certainly have more calls than a profile may hold. Their tree is then not
    built.

    A call is a beginning of a stack: its frames from the root to any frame. The function hashes all calls, and counts a
    fixed share of the different hashes. False is no certain answer.
    """
    if data.count(b";") + data.count(b"\n") <= MAX_NODES:
        return False
    powers, inverses = _powers(_FACTOR), _powers(pow(_FACTOR, -1, 1 << 64))
    found: set[int] = set()
    at = 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + _CHUNK) + 1 or len(data)
        if end - at > _CHUNK:  # a line of that length
            return False
        letters = np.frombuffer(data, np.uint8, end - at, at)
        sums = np.append(np.uint64(0), np.cumsum((letters + np.uint64(1)) * powers[: len(letters)]))
        breaks, spaces = np.flatnonzero(letters == ord("\n")), np.append(0, np.flatnonzero(letters == ord(" ")))
        starts, before_counts = np.append(0, breaks + 1), spaces[np.searchsorted(spaces, breaks) - 1]
        ends = np.append(np.flatnonzero(letters == ord(";")), before_counts)
        start = starts[np.searchsorted(starts, ends, "right") - 1]
        hashes = (sums[ends] - sums[start]) * inverses[start]
        hashes = (hashes ^ hashes >> np.uint64(32)) * powers[1]
        found.update(hashes[hashes >> np.uint64(64 - _ONE_OF_BITS) == 0].tolist())
        if len(found) << _ONE_OF_BITS > _MARGIN * MAX_NODES:
            return True
        at = end
    return False


def _powers(base: int) -> npt.NDArray[np.uint64]:
    """Return the powers 0, 1, 2, … of a number modulo 2**64: one for each byte of the data that is hashed at once."""
    factors = np.full(_CHUNK + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


class _Stacks:
    """The stacks of one file of collapsed stacks. Each frame is created once, and a repeated stack is parsed once."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._frames = _Frames(self.builder)
        self._nodes: dict[str, int] = {}
        self._cached_letters = 0
        self._names: list[str] = []
        self._path: list[int] = []

    def find(self, text: str) -> int:
        """Return the tree node of a stack that is given as text, such as `root;caller;leaf`.

        Raises:
            FormatError: The stack is too deep.
            OverflowError: The tree has too many nodes.
        """
        node = self._nodes.get(text)
        if node is None:
            if text.count(";") >= MAX_DEPTH:
                raise FormatError("line", 0, f"a stack of more than {MAX_DEPTH:,} frames")
            node = self._add(text.split(";"))
            self._cached_letters += len(text)
            if self._cached_letters > _MAX_CACHED_LETTERS:
                self._nodes.clear()
                self._cached_letters = len(text)
            self._nodes[text] = node
        return node

    def _add(self, names: list[str]) -> int:
        """Add a stack to the tree and return its node. Outer frames that are equal to those of the previous stack are
        not looked up a second time.
        """
        shared = 0
        for name, before in zip(names, self._names, strict=False):
            if name != before:
                break
            shared += 1
        path = self._path
        del path[shared:]
        node = path[-1] if path else 0
        path += self.builder.add_path(map(self._frames.__getitem__, names[shared:]), node)
        self._names = names
        return path[-1]


class _Frames(dict[str, int]):
    """A mapping from function names to the indices of their frames. A new name adds a frame to the builder."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self._builder = builder

    def __missing__(self, name: str) -> int:
        index = self[name] = self._builder.add_frame(_frame(name))
        return index


def _frame(name: str) -> Frame:
    if _MARKER.fullmatch(name):
        return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, name)
    return function_frame(name)
