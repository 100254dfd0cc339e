"""Begin and end of samples and functions, for formats that show them in order of time.

A sample begins at its time. Its end is an inference, because nothing was recorded between two samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.sample_filter import timed
from pyprof.model.integer_array_operations import distinct
from pyprof.model.prefix_tree import Tree
from pyprof.model.profile import Profile

I64 = npt.NDArray[np.int64]

IN_SEQUENCE = "It is not known when the samples were taken: those of a thread follow one another in the file's order."


def has_times(profile: Profile, samples: I64) -> bool:
    """Return True if these samples of a profile have meaningful times. This includes a snapshot with one sample of each
    thread.
    """
    return timed(profile) or len(distinct(profile.thread[samples])) == len(samples)


def place_in_sequence(profile: Profile) -> Profile:
    """Return a profile with invented times, for samples without times: the samples of each thread follow each other
    without gaps.
    """
    length_ns = sample_lengths(profile, np.arange(len(profile.stack)))
    time_ns = np.empty_like(profile.time_ns)
    order = np.argsort(profile.thread, kind="stable")
    end = np.cumsum(length_ns[order])
    begin = end - length_ns[order]
    first = np.flatnonzero(np.diff(profile.thread[order], prepend=-1))
    counts = np.diff(np.append(first, len(order)))
    time_ns[order] = profile.start_ns + begin - np.repeat(begin[first], counts)
    return replace(profile, time_ns=time_ns)


def sample_lengths(profile: Profile, samples: I64) -> I64:
    """Return the time in nanoseconds that each of these samples of a profile represents."""
    weight = profile.values[samples, -1]
    counts = profile.value_types[-1].unit != "nanoseconds"
    found: I64 = weight * profile.period_ns if counts else weight
    return found


def sample_ends(time_ns: I64, length_ns: I64, period_ns: int) -> I64:
    """Return the time at which each sample of one thread ends, in nanoseconds.

    A sample lasts for the time that it represents. It lasts until the next sample if that begins at most one period
    after this time. It never overlaps the next sample.
    """
    end = time_ns + length_ns
    following = np.append(time_ns[1:], np.iinfo(np.int64).max)
    return np.where(following - period_ns <= end, following, end)


def origin_ns(profile: Profile) -> int:
    """Return the time in nanoseconds that an export format counts as 0: the profile's start, or the first sample if
    that is earlier.
    """
    return min(profile.start_ns, int(profile.time_ns.min(initial=profile.start_ns)))


def call_slices(tree: Tree, nodes: list[int], starts: list[int], until: list[int]) -> list[tuple[int, int, int]]:
    """Return (begin, end, function) of each function call of a thread, as inferred from its samples. Outer calls come
    first.

    A call lasts through samples that follow each other without a gap and have the same function with the same callers.

    Args:
        tree: Tree of functions; the frame of a node is its function.
        nodes: Leaf node of each sample in the tree, in time order.
        starts: Begin of each sample in nanoseconds.
        until: End of each sample in nanoseconds.
    """
    begun: list[tuple[int, int]] = []
    closed: list[int] = []
    inside: list[int] = []  # the open nodes, outermost first, and the index of each in begun
    index: list[int] = []
    depth = {0: 0}
    last = starts[0]

    def close(keep: int) -> None:
        while len(inside) > keep:
            closed[index.pop()] = last
            del depth[inside.pop()]

    for node, start, end in zip(nodes, starts, until, strict=True):
        if start > last:
            close(0)
        fresh = []
        while node not in depth:
            fresh.append(node)
            node = tree.parent[node]
        close(depth[node])
        for new in reversed(fresh):
            inside.append(new)
            depth[new] = len(inside)
            index.append(len(begun))
            begun.append((start, tree.frame[new]))
            closed.append(0)
        last = end
    close(0)
    return [(begin, end, frame) for (begin, frame), end in zip(begun, closed, strict=True)]
