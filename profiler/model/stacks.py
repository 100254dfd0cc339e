"""Stacks while recording: a sample ends as one integer, a node of a prefix tree of frames.

Parents come before children; node 0 is the root of the tree and no frame. Names are looked up once per unique
frame, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from pyprof.model.walk import StackEnd, Walk

MARKER_SPACE = -1
"""FrameKey.space of a marker: its pc is the StackEnd that it marks, and the frames above it are cut off there."""

FrameKey = tuple[int, int, bool, int]
"""(AddressSpace.id or MARKER_SPACE or of described code, see model.code, pc avma, exact, Trust)"""


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
    _whole: dict[tuple[int, int, bytes], int] = field(default_factory=dict)

    def intern(
        self, walk: Walk, space: npt.NDArray[np.int32], code: npt.NDArray[np.int32] | None = None
    ) -> npt.NDArray[np.int32]:
        """Node of each lane's leaf. space: (n,) AddressSpace.id of each lane. code: (m,) for each frame of the walk
        what stands instead of the space in its FrameKey, 0 where nothing does.
        """
        nodes = np.zeros(len(walk), np.int32)
        pc, exact, trust = walk.pc.tobytes(), walk.exact.tobytes(), walk.trust.tobytes()
        starts, ends, spaces = walk.start.tolist(), walk.end.tolist(), space.tolist()
        whole = self._whole
        codes = b"" if code is None else code.tobytes()
        for lane in range(len(walk)):
            a, b = starts[lane], starts[lane + 1]
            key = (spaces[lane], ends[lane], _digest(pc[8 * a : 8 * b], exact[a:b], trust[a:b], codes[4 * a : 4 * b]))
            node = whole.get(key)
            if node is None:
                node = whole[key] = self._insert(walk, a, b, spaces[lane], ends[lane], code)
            nodes[lane] = node
        return nodes

    def adopt(self, other: StackTable, node: int) -> int:
        """The node here of the stack that is `node` in another table."""
        chain = []
        while node > 0:
            chain.append(other.frames[other.frame[node]])
            node = other.parent[node]
        here = 0
        for key in reversed(chain):
            here = self._child(here, key)
        return here

    def _insert(self, walk: Walk, a: int, b: int, space: int, end: int, code: npt.NDArray[np.int32] | None) -> int:
        node = 0
        if end != StackEnd.ROOT:
            node = self._child(0, (MARKER_SPACE, end, True, 0))
        pcs, exacts, trusts = walk.pc[a:b].tolist(), walk.exact[a:b].tolist(), walk.trust[a:b].tolist()
        codes = [0] * (b - a) if code is None else code[a:b].tolist()
        for pc, exact, trust, place in zip(*map(reversed, (pcs, exacts, trusts, codes)), strict=True):
            node = self._child(node, (place or space, pc, exact, trust))
        return node

    def _child(self, parent: int, key: FrameKey) -> int:
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


def _digest(*columns: bytes) -> bytes:
    """What stands for a whole stack in a table: one of 20,000 frames has 200 kB, and thousands are seen."""
    return blake2b(b"".join(columns), digest_size=16).digest()
