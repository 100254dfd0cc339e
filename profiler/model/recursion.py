"""Collapses direct recursion in a profile: repeated frames of one function become one."""

from __future__ import annotations

import numpy as np

from pyprof.model.functions import functions_of
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Profile
from pyprof.records import replace


def without_recursion(profile: Profile) -> Profile:
    """Return a profile in which only the outermost of consecutive frames of the same functions remains."""
    functions = [tuple(functions_of(profile, frame)) for frame in profile.frames]
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    tree = Tree()

    def kept(node: int) -> tuple[int, ...]:
        up = parent[node]
        again = up > 0 and functions[frame[node]] and functions[frame[node]] == functions[frame[up]]
        return () if again else (frame[node],)

    place = np.array(rewrite(parent, kept, tree), np.int32)
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=place[profile.stack],
    )
