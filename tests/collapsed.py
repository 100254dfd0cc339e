"""Collapsed stacks that a recording wrote.

Where processors are shared, any picture of a living program may have a block of time that no sample stands for, marked
as such. A test that asks about something else looks at what was sampled.
"""

from __future__ import annotations

Stacks = list[tuple[list[str], int]]
"""Frames from the root, and how often."""


def stacks(text: str) -> Stacks:
    """All of a file, or an output."""
    lines = [line.rpartition(" ") for line in text.splitlines()]
    return [(names.split(";"), int(count)) for names, _, count in lines]


def sampled(text: str) -> Stacks:
    """Without the blocks."""
    return [(frames, count) for frames, count in stacks(text) if not any(map(is_block, frames))]


def is_block(frame: str) -> bool:
    """Does it stand for time that was not sampled?"""
    return frame.startswith("[not sampled")
