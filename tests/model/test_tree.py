"""Tests of rewrite(), the one walk over a tree of stacks for all functions that change stacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.prefix_tree import Tree, rewrite


def grown(*stacks: str) -> tuple[Tree, list[int]]:
    """Return a tree of letters and the leaf of each stack, given from root to leaf."""
    tree = Tree()
    leaves = []
    for stack in stacks:
        node = 0
        for letter in stack:
            node = tree.child(node, ord(letter))
        leaves.append(node)
    return tree, leaves


def stack(tree: Tree, node: int) -> str:
    letters = ""
    while node > 0:
        letters = chr(tree.frame[node]) + letters
        node = tree.parent[node]
    return letters


def test_frames_that_are_left_out_join_what_they_parted() -> None:
    tree, leaves = grown("axb", "ayb", "xa")
    new = Tree()
    place = rewrite(tree.parent, lambda node: [tree.frame[node]] if tree.frame[node] not in b"xy" else [], new)
    assert [stack(new, place[leaf]) for leaf in leaves] == ["ab", "ab", "a"]
    assert len(new.parent) == 3


def test_one_frame_may_become_several() -> None:
    tree, leaves = grown("ab", "b")
    new = Tree()
    place = rewrite(tree.parent, lambda node: b"12" if tree.frame[node] == ord("b") else b"a", new)
    assert [stack(new, place[leaf]) for leaf in leaves] == ["a12", "12"]


def test_only_the_stacks_that_are_asked_for_are_taken() -> None:
    tree, (first, second, _) = grown("abc", "abd", "e")
    new = Tree()
    place = rewrite(tree.parent, lambda node: (tree.frame[node],), new, [second])
    assert stack(new, place[second]) == "abd"
    assert place[first] == -1
    assert len(new.parent) == 4


def test_stacks_may_hang_below_a_node_and_in_the_same_tree() -> None:
    tree, (root, leaf) = grown("rs", "xab")
    place = rewrite(tree.parent, lambda node: (tree.frame[node],), tree, [leaf], below=root)
    assert stack(tree, place[leaf]) == "rsxab"
    assert stack(tree, leaf) == "xab"


@given(st.lists(st.text("abc", max_size=6), max_size=8), st.sets(st.sampled_from("abc")))
def test_rewritten_stacks_are_those_of_each_stack_alone(stacks: list[str], hidden: set[str]) -> None:
    tree, leaves = grown(*stacks)
    new = Tree()
    place = rewrite(tree.parent, lambda node: [tree.frame[node]] * (chr(tree.frame[node]) not in hidden), new)
    shown = ["".join(letter for letter in each if letter not in hidden) for each in stacks]
    assert [stack(new, place[leaf]) for leaf in leaves] == shown
    assert all(parent < node for node, parent in enumerate(new.parent))
