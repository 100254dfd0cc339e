"""Stacks while recording: a sample ends as one integer, a node of a prefix tree of frames.

Parents come before children; node 0 is the root of the tree and no frame. Names are looked up once per unique
frame, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyprof.model.markers import LEFT_OUT
from pyprof.model.walk import SharedFrames, StackEnd, Trust, Walk

MARKER_SPACE = -1
"""FrameKey.space of a marker: its pc is the StackEnd that it marks, and the frames above it are cut off there."""

INTERPRETER_SPACE = -2
"""FrameKey.space of an interpreter's frame: its pc is a word that the interpreter's reader can name."""

KERNEL_SPACE = -3
"""FrameKey.space of what stands inside the innermost frame of user code: its pc is a word of model.kernel."""

MERGE_MARK = 1 << 20
"""pc of the marker below which stacks hang whose frames could not all be matched: this, the runs that have no place
times MOST_LEFT + 1, and the activations that have no run, each at most MOST_LEFT.
"""
MOST_LEFT = 999

NOT_SAMPLED = MERGE_MARK - 1
"""pc of the marker that stands for processor time without a sample."""

FrameKey = tuple[int, int, bool, int]
"""(AddressSpace.id, one of the spaces above or of described code, see model.code, pc avma, exact, Trust)"""

Inserts = tuple[tuple[int, tuple[int, ...]], ...]
"""(index of a native frame, pcs of interpreter frames that stand just inside it, innermost first), ascending."""

Merge = tuple[Inserts, int]
"""(the interpreter's frames of one stack, pc of the marker below which it hangs, 0 for none)"""

CodeOf = Callable[[int, SharedFrames], "npt.NDArray[np.int32] | None"]

_Columns = tuple[bytes, bytes, bytes, bytes]
"""pc, exact and trust of all frames of a walk, and what stands instead of their space"""


@dataclass
class StackTable:
    """Interned frames and stacks.

    frames[f]: FrameKey. parent[node], frame[node]: the tree. A stack that did not end at its root hangs below a
    marker frame, so that a truncated stack never looks whole.
    """

    frames: list[FrameKey] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [-1])
    frame: list[int] = field(default_factory=lambda: [-1])
    _frame_ids: dict[FrameKey, int] = field(default_factory=dict)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)
    _whole: dict[tuple[int, int, bytes, Merge | None, int], int] = field(default_factory=dict)
    _blocks: dict[tuple[int, int, bytes, Inserts], int] = field(default_factory=dict)
    _shared: WeakKeyDictionary[SharedFrames, npt.NDArray[np.int32]] = field(default_factory=WeakKeyDictionary)

    def intern(
        self,
        walk: Walk,
        space: npt.NDArray[np.int32],
        code: npt.NDArray[np.int32] | None = None,
        merged: Mapping[int, Merge] | None = None,
        code_of: CodeOf | None = None,
        cut: Mapping[int, int] | None = None,
    ) -> npt.NDArray[np.int32]:
        """Node of each lane's leaf. space: (n,) AddressSpace.id of each lane. code: (m,) for each frame of the walk
        what stands instead of the space in its FrameKey, 0 where nothing does. merged: what lanes have of an
        interpreter, by lane. code_of: (lane, frames) -> like code, of frames that lanes share. cut: lane -> its
        marker, where that is not only its StackEnd (see model.markers).
        """
        merged = merged or {}
        nodes = np.zeros(len(walk), np.int32)
        columns = walk.pc.tobytes(), walk.exact.tobytes(), walk.trust.tobytes(), b"" if code is None else code.tobytes()
        starts, ends, spaces = walk.start.tolist(), walk.end.tolist(), space.tolist()
        for lane, mark in (cut or {}).items():
            ends[lane] = mark
        whole = self._whole
        seen: dict[object, int] = {}
        packed, codes = _packed(walk), columns[3]
        for lane in range(len(walk)):
            a, b = starts[lane], starts[lane + 1]
            found = merged.get(lane)
            outer = 0
            if lane in walk.shared:
                frames, first = walk.shared[lane]
                outer = self._shared_node(frames, first, spaces[lane], partial(code_of, lane) if code_of else None)
            same = (
                (packed[8 * a : 8 * b], codes[4 * a : 4 * b], spaces[lane], ends[lane], found, outer)
                if packed
                else lane
            )
            node = seen.get(same)
            if node is None:
                key = (spaces[lane], ends[lane], _digest(columns, a, b), found, outer)
                node = whole.get(key)
                if node is None:
                    native = _Native(walk, a, b, spaces[lane], code, columns)
                    node = whole[key] = self._insert(native, ends[lane], found or ((), 0), outer)
                seen[same] = node
            nodes[lane] = node
        return nodes

    def extend(self, node: int, words: Sequence[int]) -> int:
        """The stack `node` with frames of the kernel inside it. words: innermost first."""
        for word in reversed(words):
            node = self.child(node, (KERNEL_SPACE, word, True, Trust.KERNEL))
        return node

    def unseen(self, words: Sequence[int]) -> int:
        """The stack of which only what the kernel does is known."""
        return self.extend(self.child(0, (MARKER_SPACE, StackEnd.UNREADABLE, True, 0)), words)

    def adopt(self, other: StackTable, node: int) -> int:
        """The node here of the stack that is `node` in another table."""
        chain = []
        while node > 0:
            chain.append(other.frames[other.frame[node]])
            node = other.parent[node]
        here = 0
        for key in reversed(chain):
            here = self.child(here, key)
        return here

    def _shared_node(
        self,
        frames: SharedFrames,
        first: int,
        space: int,
        code_of: Callable[[SharedFrames], npt.NDArray[np.int32] | None] | None,
    ) -> int:
        """The node of one of the frames that lanes share; those outside it are looked up once."""
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
            if len(self.parent) + unknown - first > MOST_NODES and unknown - first > 2 * _KEPT:
                return self._without_middle(frames, first, space, code_of(frames) if code_of else None)
            found = self._chain(
                node, self._frames_of(frames, part, space, code_of(frames) if code_of else None)[::-1].tolist()
            )
            nodes[first:unknown] = found[::-1]
        return int(nodes[first]) if first < len(nodes) else 0

    def _without_middle(self, frames: SharedFrames, first: int, space: int, code: npt.NDArray[np.int32] | None) -> int:
        """A stack's outermost and innermost frames, where there are too many stacks to keep the rest."""
        outer = self._frames_of(frames, slice(len(frames) - _KEPT, None), space, code)[::-1].tolist()
        inner = self._frames_of(frames, slice(first, first + _KEPT), space, code)[::-1].tolist()
        marker = self.child(self._chain(0, outer)[-1], (MARKER_SPACE, LEFT_OUT, True, Trust.CONTEXT))
        return self._chain(marker, inner)[-1]

    def _frames_of(
        self, frames: SharedFrames, part: slice, space: int, code: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int64]:
        """The numbers of frames, most of which are equal to others."""
        place = np.full(len(frames), space, np.int64) if code is None else np.where(code != 0, code, space)
        pc, rest = frames.pc[part], frames.exact[part] | frames.trust[part].astype(np.int64) << 1 | place[part] << 9
        order = np.lexsort((rest, pc))
        pc, rest = pc[order], rest[order]
        new = np.append(True, (pc[1:] != pc[:-1]) | (rest[1:] != rest[:-1]))
        numbers = []
        for each_pc, each in zip(pc[new].tolist(), rest[new].tolist(), strict=True):
            key = (each >> 9, each_pc, bool(each & 1), each >> 1 & 0xFF)
            number = self._frame_ids.get(key)
            if number is None:
                number = self._frame_ids[key] = len(self.frames)
                self.frames.append(key)
            numbers.append(number)
        found = np.empty(len(order), np.int64)
        found[order] = np.array(numbers, np.int64)[np.cumsum(new) - 1]
        return found

    def _chain(self, node: int, frames: list[int]) -> list[int]:
        """The nodes of frames each below the one before, the first one below a node."""
        found: list[int] = []
        children = self._children
        for frame in frames:
            below = children.get((node, frame))
            if below is None:
                break
            node = below
            found.append(node)
        fresh = frames[len(found) :]
        nodes = range(len(self.parent), len(self.parent) + len(fresh))
        parents = [node, *nodes[:-1]] if fresh else []
        self.parent += parents
        self.frame += fresh
        children.update(zip(zip(parents, fresh, strict=True), nodes, strict=True))
        return found + list(nodes)

    def _insert(self, native: _Native, end: int, merged: Merge, outer: int) -> int:
        """In blocks from the root on: of a deep stack most are known. outer: the node below which it hangs, 0: none."""
        node = self.child(outer, (MARKER_SPACE, end, True, 0)) if end != StackEnd.ROOT else outer
        if merged[1]:
            node = self.child(node, (MARKER_SPACE, merged[1], True, 0))
        inside, count = dict(merged[0]), native.end - native.begin
        node = self._interpreted(node, inside.get(count, ()))
        high = count
        while high > 0:
            low = max(high - _BLOCK, 0)
            part = tuple((high - at, pcs) for at, pcs in merged[0] if low <= at < high) if inside else ()
            key = (node, native.space, native.digest(low, high), part)
            known = self._blocks.get(key) if low else None
            if known is None:
                known = self._insert_block(native.keys(low, high), low, node, inside)
                if low:
                    self._blocks[key] = known
            node, high = known, low
        return node

    def _insert_block(self, keys: list[FrameKey], low: int, node: int, inside: dict[int, tuple[int, ...]]) -> int:
        for at in range(len(keys) - 1, -1, -1):
            node = self.child(node, keys[at])
            if inside:
                node = self._interpreted(node, inside.get(low + at, ()))
        return node

    def _interpreted(self, node: int, pcs: tuple[int, ...]) -> int:
        for pc in reversed(pcs):
            node = self.child(node, (INTERPRETER_SPACE, pc, True, Trust.INTERPRETER))
        return node

    def child(self, parent: int, key: FrameKey) -> int:
        """The node of a frame below a node."""
        frame = self._frame_ids.get(key)
        if frame is None:
            frame = self._frame_ids[key] = len(self.frames)
            self.frames.append(key)
        node = self._children.get((parent, frame))
        if node is None:
            node = self._children[parent, frame] = len(self.parent)
            self.parent.append(parent)
            self.frame.append(frame)
        return node

    def __len__(self) -> int:
        return len(self.parent)


@dataclass(slots=True)
class _Native:
    """The native frames of one stack: begin .. end of a walk, innermost first. code: as in StackTable.intern.

    columns: the walk's, as bytes.
    """

    walk: Walk
    begin: int
    end: int
    space: int
    code: npt.NDArray[np.int32] | None
    columns: _Columns

    def digest(self, low: int, high: int) -> bytes:
        return _digest(self.columns, self.begin + low, self.begin + high)

    def keys(self, low: int, high: int) -> list[FrameKey]:
        """Of the frames low .. high of the stack."""
        return _keys(self.walk, slice(self.begin + low, self.begin + high), self.space, self.code)


def _keys(frames: Walk | SharedFrames, part: slice, space: int, code: npt.NDArray[np.int32] | None) -> list[FrameKey]:
    """Of some frames. code: what stands instead of the space, 0 where nothing does."""
    pcs, exacts, trusts = frames.pc[part].tolist(), frames.exact[part].tolist(), frames.trust[part].tolist()
    places = [0] * len(pcs) if code is None else code[part].tolist()
    return [
        (place or space, pc, exact, trust) for place, pc, exact, trust in zip(places, pcs, exacts, trusts, strict=True)
    ]


MOST_NODES = 4_000_000
"""With more, of shared frames that are not known only the outermost and the innermost _KEPT are kept: a node takes 200
bytes, and each look at a deep stack may be another one.
"""
_KEPT = 512
_BLOCK = 64
"""Frames."""

_MOST_PACKED = 1 << 17


def _packed(walk: Walk) -> bytes:
    """A word of each frame with all that there is to know of it: a shortcut to lanes of one batch that are equal. b""
    where that is not possible, or not worth it.
    """
    if len(walk.pc) > _MOST_PACKED or (walk.pc >> np.uint64(57)).any():
        return b""
    trust, exact = walk.trust.astype(np.uint64), walk.exact.astype(np.uint64)
    packed: npt.NDArray[np.uint64] = walk.pc | trust << np.uint64(57) | exact << np.uint64(63)
    return packed.tobytes()


def _digest(columns: _Columns, a: int, b: int) -> bytes:
    """What stands for frames in a table: a stack of 20,000 has 200 kB, and thousands are seen."""
    pc, exact, trust, code = columns
    frames = b"".join((pc[8 * a : 8 * b], exact[a:b], trust[a:b], code[4 * a : 4 * b]))
    return blake2b(frames, digest_size=16).digest()
