"""Collapsed stacks that a recording wrote.

On a machine with shared processors any recording of a live program may contain time without samples, which a marker
frame shows. Tests of other properties use the sampled stacks only.
"""

from __future__ import annotations

Stacks = list[tuple[list[str], int]]
"""(frames from root to leaf, number of samples) of each stack."""


def stacks(text: str) -> Stacks:
    """Parse collapsed stacks."""
    lines = [line.rpartition(" ") for line in text.splitlines()]
    return [(names.split(";"), int(count)) for names, _, count in lines]


def sampled(text: str) -> Stacks:
    """Parse collapsed stacks and drop those of unsampled time."""
    return [(frames, count) for frames, count in stacks(text) if not any(map(is_block, frames))]


def is_block(frame: str) -> bool:
    """Return True if the frame stands for unsampled time."""
    return frame.startswith("[not sampled")
