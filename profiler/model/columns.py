"""Columns of integers, and prefix trees of frames in columns.

The functions avoid numpy.ma: np.unique and np.isin import it, which takes 10 ms.

In a prefix tree parents come before children; node 0 is the root of the tree and no frame. A pass that changes stacks
is a function of one node. rewrite() applies it to the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Integer = TypeVar("Integer", bound=np.integer)

_PIECE = 1 << 16
MAX_SUM = 1 << 62
"""Maximum sum of a profile's values. The difference of two such sums fits into 64 bits, too."""


def largest_sum(values: npt.NDArray[np.int64]) -> float:
    """Return the largest sum of absolute values over the columns of an array of shape (rows, columns)."""
    return float(np.abs(values.astype(np.float64)).sum(axis=0).max()) if values.size else 0.0


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """Return the distinct values of an array of any shape, ascending, shape (n,)."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: npt.NDArray[Integer] = ordered[first]
    return found


def numbered(values: npt.NDArray[Integer]) -> tuple[npt.NDArray[Integer], npt.NDArray[np.int64]]:
    """Return the distinct values of an array, and the index of each element's value among them.

    There may be millions of values. They are processed in parts to limit the temporary memory.

    Returns:
        (distinct values, ascending; int64 index of each element's value, shape (n,)).
    """
    parts = [slice(at, at + _PIECE) for at in range(0, len(values), _PIECE)]
    found = distinct(np.concatenate([values[:0], *(distinct(values[part]) for part in parts)]))
    which = np.empty(len(values), np.int64)
    for part in parts:
        which[part] = np.searchsorted(found, values[part])
    return found, which


def among(values: npt.NDArray[Integer], wanted: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of an array: a bool array of shape (n,) that is True for values in `wanted`."""
    return np.isin(values, list(wanted)) if len(values) and wanted else np.zeros(len(values), np.bool_)


Item = TypeVar("Item", contravariant=True)
_Item = TypeVar("_Item")


class Growing(Protocol[Item]):
    """The protocol of a prefix tree of frames to which nodes can be added."""

    def child(self, parent: int, item: Item, /) -> int:
        """Return the node that has an item below a parent node of the tree. A missing node is added."""
        ...


class Tree:
    """A prefix tree of numbers to which nodes can be added, such as indices of frames. `parent` and `frame` are columns
    of its nodes.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [-1]
        self.frame: list[int] = [-1]
        self._children: dict[int, int] = {}  # by parent << 32 | frame

    def child(self, parent: int, frame: int) -> int:
        return self.add_path((frame,), parent)[0]

    def add_path(self, frames: Iterable[int], node: int = 0) -> list[int]:
        """Return the nodes of frames, outermost first, below a node of the tree, and add those that are new."""
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
