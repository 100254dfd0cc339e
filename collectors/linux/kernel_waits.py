"""Kernel functions that wait uninterruptibly, from /proc/kallsyms.

Such a wait is state D in /proc/PID/stat (TASK_UNINTERRUPTIBLE). The list is used until a thread was seen in the same
wait.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

_FUNCTIONS = (
    "io_schedule", "io_schedule_timeout", "bit_wait_io", "folio_wait_bit_common", "wait_for_completion",
    "wait_for_completion_timeout", "wait_for_completion_io", "wait_for_completion_io_timeout", "__mutex_lock.*",
    "rwsem_down_read_slowpath", "rwsem_down_write_slowpath", "schedule_timeout_uninterruptible",
    "schedule_timeout_killable", "msleep", "usleep_range_state", "__down", "blk_mq_get_tag", "jbd2_log_wait_commit",
)  # fmt: skip
_LINES = re.compile(
    rb"^([0-9a-f]+) [tT] (?:%b)(?:\.[\w.]+)?\n([0-9a-f]+) " % b"|".join(name.encode() for name in _FUNCTIONS),
    re.MULTILINE,
)
_MAX_KALLSYMS_BYTES = 1 << 28


def make_state_lookup(path: str = "/proc/kallsyms") -> Callable[[tuple[int, ...]], str]:
    """Return a function that maps kernel frames, innermost first, to the state D or S, or to B (blocked) if the kernel
    hides addresses.
    """
    spans: list[tuple[int, int]] | None = None

    def state(chain: tuple[int, ...]) -> str:
        nonlocal spans
        if spans is None:
            spans = _read(path)
        if not spans or not chain:
            return "B"
        starts = [start for start, _ in spans]
        for pc in chain:
            at = bisect_right(starts, pc) - 1
            if at >= 0 and pc < spans[at][1]:
                return "D"
        return "S"

    return state


def _read(path: str) -> list[tuple[int, int]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_KALLSYMS_BYTES)
    except OSError:
        return []
    spans = [(int(start, 16), int(end, 16)) for start, end in _LINES.findall(text)]
    return sorted((start, end) for start, end in spans if start < end)
