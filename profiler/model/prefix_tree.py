"""Prefix trees of frames. Parents come before children; node 0 is the root of the tree and no frame.

A pass that changes stacks is a function of one node. rewrite() applies it to the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item", contravariant=True)
_Item = TypeVar("_Item")


class Growing(Protocol[Item]):
    """A prefix tree of frames that is being built."""

    def child(self, parent: int, item: Item, /) -> int:
        """Return the node of an item below a node of the tree, and add the item if it is new."""
        ...


class Tree:
    """A growing prefix tree of numbers, such as indices of frames. `parent` and `frame` are columns of its nodes."""

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
