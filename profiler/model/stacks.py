"""Stacks of a recording: a sample becomes one integer, a node of a prefix tree of frames.

Parents come before children; node 0 is the root of the tree and no frame. Names are resolved once for each unique
frame, at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.marker_frames import (
    CUTS,
    LEFT_OUT,
    LOST,
    NOT_ONE_BY_ONE,
    NOT_SAMPLED,
    Blocked,
    KernelFrame,
    KernelStack,
    Mark,
    MarkKind,
)
from pyprof.model.prefix_tree import rewrite
from pyprof.model.profile import FrameKind
from pyprof.model.unwind_result import SharedFrames, StackEnd, Trust, Walk, unpacked

NO_SPACE = -1


class FrameKey(NamedTuple):
    """The identity of one frame before its name is resolved. Fields that its kind does not use have their defaults.

    NATIVE frames have space (AddressSpace.id), pc (avma as found), exact (False for a return address) and trust. In
    code that no file contains, `code` is the number of its description, from 1 on, and there is no space. INTERPRETER
    frames have place, which the interpreter's reader can resolve, and trust. KERNEL frames have pc or blocked. MARKER
    frames have mark.
    """

    kind: FrameKind
    trust: int
    space: int = NO_SPACE
    code: int = 0
    pc: int = 0
    exact: bool = True
    place: FunctionPlace | None = None
    mark: Mark | None = None
    blocked: Blocked | None = None


_PlainKey = tuple[FrameKind, int, int, int, int, bool, FunctionPlace | None, Mark | None, Blocked | None]
"""The fields of a FrameKey (a frame before its name is resolved) as a plain tuple, which is equal to the FrameKey and
cheaper to make.
"""


def native_key(space: int, pc: int, exact: bool, trust: int, code: int = 0) -> FrameKey:
    return FrameKey(FrameKind.NATIVE, trust, NO_SPACE if code else space, code, pc, exact)


def interpreter_key(place: FunctionPlace, trust: int = Trust.INTERPRETER) -> FrameKey:
    return FrameKey(FrameKind.INTERPRETER, trust, place=place)


def kernel_key(frame: KernelFrame) -> FrameKey:
    if isinstance(frame, Blocked):
        return FrameKey(FrameKind.KERNEL, Trust.KERNEL, blocked=frame)
    return FrameKey(FrameKind.KERNEL, Trust.KERNEL, pc=frame)


def marker_key(mark: Mark) -> FrameKey:
    return FrameKey(FrameKind.MARKER, Trust.CONTEXT, mark=mark)


Inserts = tuple[tuple[int, tuple[FunctionPlace, ...]], ...]
"""Type of the positions of interpreter frames in a native stack: pairs (index of a native frame, the interpreter frames
directly inside that frame), both innermost first.
"""

Merge = tuple[Inserts, Mark | None]
"""Pair of the interpreter frames to insert into one native stack, and a marker for the stack's root, None for no
marker.
"""

CodeOf = Callable[[int, SharedFrames], "npt.NDArray[np.int32] | None"]

_WholeKey = tuple[int, Mark | None, bytes, Merge | None, int]
"""Key of a complete stack: address space, marker, frames or their digest, interpreter frames, and the node outside of
the stack.
"""

_Columns = tuple[bytes, bytes, bytes, bytes]
"""Columns of all frames of an unwound batch as bytes: pc, exact, trust, code."""


@dataclass
class StackTable:
    """The frames and stacks of a recording, each stored once.

    A truncated stack has a marker as root, so that it is never confused with a complete one. There are millions of
    children, so _children maps parent << 32 | frame to the node.

    Attributes:
        frames: Frames by number.
        parent: Parent of each node.
        frame: Frame number of each node.
    """

    frames: list[FrameKey] = field(default_factory=list)
    parent: array[int] = field(default_factory=lambda: array("i", [-1]))
    frame: array[int] = field(default_factory=lambda: array("i", [-1]))
    _frame_ids: dict[_PlainKey, int] = field(default_factory=dict)
    _children: dict[int, int] = field(default_factory=dict)
    _whole: dict[_WholeKey, int] = field(default_factory=dict)
    _blocks: dict[tuple[int, int, bytes, Inserts], int] = field(default_factory=dict)
    _natives: dict[int, dict[int, int]] = field(default_factory=dict)
    _shared: WeakKeyDictionary[SharedFrames, npt.NDArray[np.int32]] = field(default_factory=WeakKeyDictionary)

    def intern(
        self,
        walk: Walk,
        space: npt.NDArray[np.int32],
        code: npt.NDArray[np.int32] | None = None,
        merged: Mapping[int, Merge] | None = None,
        code_of: CodeOf | None = None,
        cut: Mapping[int, Mark] | None = None,
    ) -> npt.NDArray[np.int32]:
        """Add the stacks of an unwound batch (Walk) to the table, and return the node of each sample.

        Args:
            walk: The walk of n samples.
            space: (n,) AddressSpace.id.
            code: (m,) FrameKey.code of each frame of the walk.
            merged: Interpreter frames by sample index.
            code_of: (sample index, frames that several samples share) -> FrameKey.code of each of these frames.
            cut: Markers by sample index, if they contain more than the StackEnd (see model.marker_frames).

        Returns:
            (n,) int32 leaf of each stack.
        """
        merged = merged or {}
        nodes = np.zeros(len(walk), np.int32)
        columns = walk.pc.tobytes(), walk.exact.tobytes(), walk.trust.tobytes(), b"" if code is None else code.tobytes()
        starts, spaces = walk.start.tolist(), space.tolist()
        marks = {lane: CUTS[end] for lane, end in enumerate(walk.end.tolist())} | dict(cut or {})
        seen: dict[object, int] = {}
        packed, codes = b"" if (words := walk.packed()) is None else words.tobytes(), columns[3]
        for lane in range(len(walk)):
            a, b = starts[lane], starts[lane + 1]
            found = merged.get(lane)
            outer = 0
            if lane in walk.shared:
                frames, first = walk.shared[lane]
                outer = self._shared_node(frames, first, spaces[lane], partial(code_of, lane) if code_of else None)
            apart = (packed[8 * a : 8 * b], codes[4 * a : 4 * b], spaces[lane], marks[lane], found, outer)
            same = apart if packed else lane
            node = seen.get(same)
            if node is None:
                key = (spaces[lane], marks[lane], _digest(columns, a, b), found, outer)
                node = self._whole.get(key)
                if node is None:
                    native = _Native(walk, a, b, spaces[lane], code, columns)
                    node = self._insert(native, marks[lane], found or ((), None), outer)
                    _remember(self._whole, key, node)
                seen[same] = node
            nodes[lane] = node
        return nodes

    def natives(self, words: list[int], space: int) -> list[int]:
        """Return the numbers of native frames in this table. New frames are added.

        Args:
            words: The frames, each as a word of Walk.packed().
            space: Number of their address space.
        """
        known = self._natives.setdefault(space, {})
        try:
            return [known[word] for word in words]
        except KeyError:
            for word in words:
                if word not in known:
                    known[word] = self._number(native_key(space, *unpacked(word)))
            return [known[word] for word in words]

    def extend(self, node: int, frames: KernelStack) -> int:
        """Return the node of a stack to which kernel frames are added at its inner end."""
        for frame in reversed(frames):
            node = self.child(node, kernel_key(frame))
        return node

    def append_stack(self, below: int, node: int) -> int:
        """Add the frames of one stack at the inner end of another one, and return the new leaf.

        Args:
            below: Leaf of the outer stack.
            node: Leaf of the stack whose frames are added.
        """
        return [below, *self.chain(below, self._path(node))][-1]

    def add_outer_marker(self, node: int, mark: Mark) -> int:
        """Return the node of a stack to which a marker is added at its outer end. The marker of a truncated stack stays
        outermost.
        """
        path = self._path(node)
        lacks = int(bool(path) and self.frames[path[0]].mark is not None)
        at = [0, *self.chain(0, path[:lacks])][-1]
        at = self.child(at, marker_key(mark))
        return [at, *self.chain(at, path[lacks:])][-1]

    def _path(self, node: int) -> list[int]:
        """Return the frame numbers of a stack, outermost first."""
        path = []
        while node > 0:
            path.append(self.frame[node])
            node = self.parent[node]
        return path[::-1]

    def add_unread_stack(self, frames: KernelStack) -> int:
        """Return the node of a sample's stack that could not be read, so that at most its kernel frames are known."""
        sums = not frames or any(isinstance(frame, Blocked) and frame.call == NOT_ONE_BY_ONE for frame in frames)
        return self.extend(self.child(0, marker_key(NOT_SAMPLED if sums else UNREADABLE)), frames)

    def add_lost_time(self) -> int:
        """Return the node of running time whose samples were lost."""
        return self.child(0, marker_key(LOST))

    def copy_stacks(self, other: StackTable, nodes: Iterable[int]) -> list[int]:
        """Copy stacks of another stack table into this one, by their leaves.

        Returns:
            The node in this table of each node in the other one, -1 for nodes that were not copied.
        """
        return rewrite(other.parent, other.key, self, nodes)

    def key(self, node: int) -> tuple[FrameKey]:
        """Return the frame of a stack node as a tuple of one item. rewrite() takes it as a function that keeps every
        frame.
        """
        return (self.frames[self.frame[node]],)

    def _shared_node(
        self,
        frames: SharedFrames,
        first: int,
        space: int,
        code_of: Callable[[SharedFrames], npt.NDArray[np.int32] | None] | None,
    ) -> int:
        """Return the node of one of the frames that several samples of a deep stack share. Frames outside of it are
        added when they are first needed.

        Args:
            frames: The shared frames.
            first: Index of the frame.
            space: Number of the address space.
            code_of: Returns the numbers of the JIT code in which the frames lie.
        """
        nodes = self._shared.get(frames)
        if nodes is None:
            nodes = np.zeros(len(frames), np.int32)
            if frames.before is not None and (known := self._shared.get(frames.before[0])) is not None:
                _, at, own = frames.before
                nodes[own:] = known[at:]
            self._shared[frames] = nodes
        if first < len(nodes) and not nodes[first]:
            unknown = first + int(np.argmax(nodes[first:] > 0)) if nodes[first:].any() else len(nodes)
            node = int(nodes[unknown]) if unknown < len(nodes) else 0
            part = slice(first, unknown)
            if len(self.parent) + unknown - first > MAX_NODES and unknown - first > 2 * _KEPT:
                return self._without_middle(frames, first, space, code_of(frames) if code_of else None)
            found = self.chain(
                node, self._frames_of(frames, part, space, code_of(frames) if code_of else None)[::-1].tolist()
            )
            nodes[first:unknown] = found[::-1]
        return int(nodes[first]) if first < len(nodes) else 0

    def _without_middle(self, frames: SharedFrames, first: int, space: int, code: npt.NDArray[np.int32] | None) -> int:
        """Add only the outermost and innermost frames of a deep stack to the tree, because the tree already has too
        many nodes. Return the leaf.
        """
        outer = self._frames_of(frames, slice(len(frames) - _KEPT, None), space, code)[::-1].tolist()
        inner = self._frames_of(frames, slice(first, first + _KEPT), space, code)[::-1].tolist()
        marker = self.child(self.chain(0, outer)[-1], marker_key(LEFT_OUT))
        return self.chain(marker, inner)[-1]

    def _frames_of(
        self, frames: SharedFrames, part: slice, space: int, code: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int64]:
        """Return the numbers of shared native frames in this table, and add new ones. Equal frames, which are most of a
        deep recursion, are looked up only once.
        """
        described = np.zeros(len(frames), np.int32) if code is None else code
        columns = [frames.exact[part], frames.trust[part], described[part], frames.pc[part]]
        order = np.lexsort(columns)
        columns = [column[order] for column in columns]
        new = np.append(True, np.logical_or.reduce([column[1:] != column[:-1] for column in columns]))
        numbers = []
        for exact, trust, number_of_code, pc in zip(*(column[new].tolist() for column in columns), strict=True):
            numbers.append(self._number(native_key(space, pc, exact, trust, number_of_code)))
        found = np.empty(len(order), np.int64)
        found[order] = np.array(numbers, np.int64)[np.cumsum(new) - 1]
        return found

    def chain(self, node: int, frames: list[int]) -> list[int]:
        """Add frames below a node of the stack tree, each below the one before. Return their nodes."""
        found: list[int] = []
        node, children = int(node), self._children
        for frame in frames:
            below = children.get(node << 32 | frame)
            if below is None:
                break
            node = below
            found.append(node)
        fresh = frames[len(found) :]
        nodes = range(len(self.parent), len(self.parent) + len(fresh))
        parents = [node, *nodes[:-1]] if fresh else []
        self.parent.extend(parents)
        self.frame.extend(fresh)
        children.update({parent << 32 | frame: at for parent, frame, at in zip(parents, fresh, nodes, strict=True)})
        return found + list(nodes)

    def _insert(self, native: _Native, mark: Mark | None, merged: Merge, outer: int) -> int:
        """Add a stack in blocks from the root on, because most blocks of a deep stack are known.

        Args:
            native: Native frames of the stack.
            mark: Marker of a truncated stack.
            merged: Interpreter frames of the stack.
            outer: Node below which it is added, 0 for the root.
        """
        node = self.child(outer, marker_key(mark)) if mark else outer
        if merged[1]:
            node = self.child(node, marker_key(merged[1]))
        inside, count = dict(merged[0]), native.end - native.begin
        if places := inside.get(count):
            node = self.chain(node, self.interpreted(places))[-1]
        high = count
        while high > 0:
            low = max(high - _BLOCK, 0)
            part = tuple((high - at, places) for at, places in merged[0] if low <= at < high) if inside else ()
            key = (node, native.space, native.digest(low, high), part)
            known = self._blocks.get(key) if low else None
            if known is None:
                known = self._insert_block(native.keys(low, high), low, node, inside)
                if low:
                    self._blocks[key] = known
            node, high = known, low
        return node

    def _insert_block(
        self, keys: Iterable[_PlainKey], low: int, node: int, inside: dict[int, tuple[FunctionPlace, ...]]
    ) -> int:
        """Add a block of a deep stack's frames below a node of the stack tree.

        Args:
            keys: Keys of the frames, innermost first.
            low: Index of the innermost frame of the block in its stack.
            node: The node.
            inside: Interpreter frames to insert, by index of the native frame outside of them.
        """
        numbers: list[int] = []
        for at, key in reversed(list(enumerate(keys, low))):
            numbers.append(self._number_of(key))
            if inside and (places := inside.get(at)):
                numbers += self.interpreted(places)
        return self.chain(node, numbers)[-1]

    def interpreted(self, places: tuple[FunctionPlace, ...]) -> list[int]:
        """Return the numbers of some interpreter frames in this table, outermost first, and add new frames."""
        numbers = {place: self._number(interpreter_key(place)) for place in dict.fromkeys(reversed(places))}
        return [numbers[place] for place in reversed(places)]

    def _number_of(self, key: _PlainKey) -> int:
        """Return the number of a frame by its key as a plain tuple. Only for a new frame, a FrameKey is made.

        A FrameKey for each known frame would take as much time as all other work.
        """
        frame = self._frame_ids.get(key)
        return frame if frame is not None else self._number(FrameKey(*key))

    def _number(self, key: FrameKey) -> int:
        frame = self._frame_ids.get(key)
        if frame is None:
            frame = self._frame_ids[key] = len(self.frames)
            self.frames.append(key)
        return frame

    def child(self, parent: int, key: FrameKey) -> int:
        """Return the node of a frame below a node of the stack tree, and add it if it is new."""
        frame = self._number(key)
        at = int(parent) << 32 | frame
        node = self._children.get(at)
        if node is None:
            node = self._children[at] = len(self.parent)
            self.parent.append(parent)
            self.frame.append(frame)
        return node

    def __len__(self) -> int:
        return len(self.parent)


@dataclass(slots=True)
class _Native:
    """The frames from begin to end in the columns of an unwound batch: the native frames of one stack, innermost
    first.
    """

    walk: Walk
    begin: int
    end: int
    space: int
    code: npt.NDArray[np.int32] | None
    columns: _Columns

    def digest(self, low: int, high: int) -> bytes:
        return _digest(self.columns, self.begin + low, self.begin + high)

    def keys(self, low: int, high: int) -> Iterator[_PlainKey]:
        """Yield the keys (see native_key()) of some frames of the stack, from index `low` up to `high`."""
        part = slice(self.begin + low, self.begin + high)
        pcs, exacts, trusts = (column[part].tolist() for column in (self.walk.pc, self.walk.exact, self.walk.trust))
        codes: Iterable[int] = repeat(0)
        spaces: Iterable[int] = repeat(self.space)
        if self.code is not None:
            codes = self.code[part].tolist()
            spaces = [NO_SPACE if code else self.space for code in codes]
        return zip(
            repeat(FrameKind.NATIVE), trusts, spaces, codes, pcs, exacts, repeat(None), repeat(None), repeat(None)
        )


UNREADABLE = Mark(MarkKind.CUT, StackEnd.UNREADABLE)

MAX_NODES = 4_000_000
"""Maximum number of nodes of the stack tree. When it is reached, only the outermost and innermost frames of a new deep
stack are kept.

A node takes 200 bytes, and each sample of a deep stack may be different.
"""
_MAX_WHOLE = 1 << 14
"""Number of complete stacks whose node is cached. In a service nearly each sample has a new stack."""
_KEPT = 512
_BLOCK = 64
"""Number of frames of a deep stack that are looked up together in the stack tree."""

_FEW = 32
"""Maximum number of frames whose bytes are the key of a stack. Longer stacks have a digest as their key.

A frame takes 14 bytes, so no such key is equal to a digest of 16 bytes.
"""


def _remember(whole: dict[_WholeKey, int], key: _WholeKey, node: int) -> None:
    if len(whole) >= _MAX_WHOLE:
        whole.clear()
    whole[key] = node


def _digest(columns: _Columns, a: int, b: int) -> bytes:
    """Return a key for frames of a stack: the bytes themselves, or a digest if there are many.

    A stack of 20,000 frames has 200 kB, and a recording has thousands of them.
    """
    pc, exact, trust, code = columns
    frames = b"".join((pc[8 * a : 8 * b], exact[a:b], trust[a:b], code[4 * a : 4 * b]))
    if b - a <= _FEW:
        return frames
    from _blake2 import blake2b  # hashlib loads OpenSSL

    return blake2b(frames, digest_size=16).digest()
