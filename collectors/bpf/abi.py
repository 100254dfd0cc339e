"""The contents of sampler.h as columns: records in the ring, and the values of the maps."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

from pyprof.collectors.linux.sampled_arch import WIDE

REGISTERS = len(WIDE.registers)
GOROUTINE_WORDS = 20
HEAD_WORDS = 17 + REGISTERS + GOROUTINE_WORDS
ENDED_WORDS = 13
FRAME_WORDS = 5
ANCHOR_WORDS = 2
TEXT_WORDS = 32
PAGE = 4096
MOST_STACK = 256 << 10
STACK_SLACK = 256

LAYOUT = struct.Struct("=20IQ22I")
PROCESS = struct.Struct("=QIIQQ56xq5I4x")
THREAD = struct.Struct("=QQQQ")
WAIT = struct.Struct("=8QIIIiIIQIIiI16s")
LIMITS = struct.Struct("=QQQ")
BUCKETS = 32
"""Number of buckets of the histogram of the BPF program's run times: one for each power of two of nanoseconds."""


class LossReason(IntEnum):
    """Reasons why a part of a sample is missing; format_losses_header() generates enum reason in losses.h from them.

    Attributes:
        comment: Comment in losses.h.
        counted: The counter (profiler/model/reason_table.py), "" for none.
    """

    comment: str
    counted: str

    def __new__(cls, number: int, comment: str, counted: str = "") -> LossReason:
        self = int.__new__(cls, number)
        self._value_, self.comment, self.counted = number, comment, counted
        return self

    SAMPLED = 0, "a record was submitted"
    RING_FULL = 1, "no room for the record"
    NO_USER_MODE = 2, "a kernel thread, or no registers"
    STACK_UNREADABLE = 3, "pages of the stack could not be read: never touched, or swapped out"
    STACK_CUT = 4, "longer than MOST_STACK", "bpf_stack_too_long"
    STACK_END_GUESSED = 5, "the list of mappings was locked", "stack_end_unknown"
    NO_THREAD_STATE = (
        6,
        "of an interpreter's process: the thread has none",
        "thread_without_interpreter_state",
    )
    FRAME_UNREADABLE = 7, "of an interpreter", "interpreter_frame_not_in_memory"
    TOO_MANY_FRAMES = (
        8,
        "more than MOST_FRAMES",
        "bpf_too_many_interpreter_frames",
    )
    OVER_BUDGET = (
        9,
        "the run took longer than MOST_RUN_NS: frames and stack end where it was then",
        "bpf_time_limit",
    )
    WAIT_LOST = (
        10,
        "no room for the end of a wait, or for its thread in the table: only in the sums, or nowhere",
        "wait_end_lost",
    )
    NO_STACK_OF_WAIT = 11, "its thread waits so often that not each wait is copied, or there was no room for it"
    ARRIVAL_MISSED = (
        12,
        "a thread leaves its processor, and the program was not called when it came",
        "switch_in_missed",
    )


def format_losses_header() -> str:
    """Return the text of the C header losses.h, which gives each reason for a lost sample its number."""
    rows = "".join(f"\t{reason.name}, /* {reason.comment} */\n" for reason in LossReason)
    licence = "/* SPDX-License-Identifier: MIT OR GPL-2.0-only */\n"
    what = "/* Why something of a sample is missing: one counter each. Made of collectors/bpf/abi.py. */\n"
    return f"{licence}{what}enum reason {{\n{rows}\tREASONS\n}};\n"


class Flag(IntFlag):
    """Flags of a record that the BPF program writes into the ring (struct record.flags)."""

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
    SEVERAL = 2048
