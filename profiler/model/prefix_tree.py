"""Prefix trees of frames in columns, and a rewrite of all stacks of such a tree.

In a prefix tree parents come before children; node 0 is the root of the tree and no frame. A pass that changes stacks
is a function of one node. rewrite() applies it to the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item", contravariant=True)
_Item = TypeVar("_Item")


class Growing(Protocol[Item]):
    """The protocol of a prefix tree of frames to which nodes can be added."""

    def child(self, parent: int, item: Item, /) -> int:
        """Return the node that has an item below a parent node of the tree. A missing node is added."""
        ...


class Tree:
    """A prefix tree of numbers, such as indices of frames, to which nodes can be added. `parent` and `frame` have the
    parent and the number of each node.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [-1]
        self.frame: list[int] = [-1]
        self._children: dict[int, int] = {}  # by parent << 32 | frame

    def child(self, parent: int, frame: int) -> int:
        return self.add_path((frame,), parent)[0]

    def add_path(self, frames: Iterable[int], node: int = 0) -> list[int]:
        """Add frames below a node of the tree, each below the one before, and return their nodes. Nodes that exist are
        reused.
        """
        children, parents = self._children, self.parent
        path = []
        for frame in frames:
            key = node << 32 | frame
            child = children.get(key)
            if child is None:
                child = children[key] = len(parents)
                parents.append(node)
                self.frame.append(frame)
            node = child
            path.append(child)
        return path


def rewrite(
    parent: Sequence[int],
    function: Callable[[int], Iterable[_Item]],
    into: Growing[_Item],
    leaves: Iterable[int] | None = None,
    below: int = 0,
) -> list[int]:
    """Copy the stacks of one prefix tree to another tree, with changes.

    Args:
        parent: Parents of the nodes of the old tree.
        function: (old node) -> items that replace it, outermost first, none to remove it. It is called once for each
            node, after the node's parent.
        into: The new tree.
        leaves: Only the stacks of these nodes, in this order; None for all.
        below: Node of the new tree that replaces the root.

    Returns:
        The new node of each old node, -1 for nodes that were not copied.
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
