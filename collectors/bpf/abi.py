"""What sampler.h states, as columns: records in the ring, and the values of the maps."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

REGISTERS = 17
HEAD_WORDS = 30
ENDED_WORDS = 13
FRAME_WORDS = 5
ANCHOR_WORDS = 2
TEXT_WORDS = 32
PAGE = 4096
MOST_STACK = 256 << 10

LAYOUT = struct.Struct("=20IQ6I")
PROCESS = struct.Struct("=QIIQQ")
THREAD = struct.Struct("=QQQQ")
WAIT = struct.Struct("=6QIIIiIIQIIiI16s")
LIMITS = struct.Struct("=QQQ")
BUCKETS = 32
"""Of the histogram of run times: one for each power of two of nanoseconds."""


class LossReason(IntEnum):
    """enum reason."""

    SAMPLED = 0
    RING_FULL = 1
    NO_USER_MODE = 2
    STACK_UNREADABLE = 3
    STACK_CUT = 4
    STACK_END_GUESSED = 5
    NO_THREAD_STATE = 6
    FRAME_UNREADABLE = 7
    TOO_MANY_FRAMES = 8
    OVER_BUDGET = 9
    WAIT_LOST = 10
    NO_STACK_OF_WAIT = 11
    ARRIVAL_MISSED = 12


class Flag(IntFlag):
    """struct record.flags."""

    CHAIN = 1
    HOLDS_LOCK = 2
    COLLECTING = 4
    BROKEN = 8
    CUT = 16
    KERNEL = 32
    NARROW = 64
    WAITS = 128
    ENDED = 256
    GONE = 512
    WAKER = 1024
