"""Prefix trees of frames: parents come before children; node 0 is the root of the tree and no frame.

A pass that changes stacks is a function of one node. rewrite() walks the tree for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item", contravariant=True)
_Item = TypeVar("_Item")


class Growing(Protocol[Item]):
    """A tree that is being built."""

    def child(self, parent: int, item: Item, /) -> int:
        """The node of an item below a node; a new one if there is none."""
        ...


class Tree:
    """A growing tree of numbers, such as indices of frames. parent, frame: columns of its nodes."""

    def __init__(self) -> None:
        self.parent: list[int] = [-1]
        self.frame: list[int] = [-1]
        self._children: dict[tuple[int, int], int] = {}

    def child(self, parent: int, frame: int) -> int:
        node = self._children.setdefault((parent, frame), len(self.parent))
        if node == len(self.parent):
            self.parent.append(parent)
            self.frame.append(frame)
        return node


def rewrite(
    parent: Sequence[int],
    function: Callable[[int], Iterable[_Item]],
    into: Growing[_Item],
    leaves: Iterable[int] | None = None,
    below: int = 0,
) -> list[int]:
    """The stacks of one tree, changed, in another tree. Returns the new node of each old one.

    parent: of the old tree. function: (old node) -> what stands in its place, outermost first, nothing where it is left
    out; it is called once a node, after the node's parent. leaves: only the stacks of these nodes, in this order; the
    others have -1. below: the node of the new tree that takes the place of the root.
    """
    place = [-1] * len(parent)
    place[0] = below
    for leaf in range(1, len(parent)) if leaves is None else leaves:
        path = []
        node = leaf
        while place[node] < 0:
            path.append(node)
            node = parent[node]
        at = place[node]
        for node in reversed(path):
            for item in function(node):
                at = into.child(at, item)
            place[node] = at
    return place
