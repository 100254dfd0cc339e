"""The compiled code that takes samples by ptrace stops, and the structures that are passed to it (rounds.c,
stop.h, frames.h).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt


class StopEnding(IntEnum):
    """The state of a thread after the compiled sampling loop has tried to stop and sample it."""

    TAKEN = 0  # copied, and it runs again
    HELD = 1  # it is stopped
    PENDING = 2  # it was interrupted, and has not stopped yet
    REFUSED = 3  # it may not be traced, or has ended
    LOST = 4  # it ended after it was interrupted


class ReturnReason(IntEnum):
    """The reason for which a call of the compiled sampling loop returned."""

    DONE = 0
    STOPPED = 1  # the last sample: see its ending
    ASK = 2  # the current thread must be checked
    CHANGED = 3  # a process has changed
    FULL = 4  # there is no room for the current thread


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64 | ctypes.c_int64]]]:
    """Return the fields of a ctypes structure as 64-bit words by name; a leading "-" marks a signed field."""
    return [(name.lstrip("-"), ctypes.c_int64 if name[0] == "-" else ctypes.c_uint64) for name in names.split()]


class MachineRow(ctypes.Structure):
    _fields_ = [
        *_words("registers_size -sp -pc -call -result call_code call_size zone slack least bound_ns window_ns"),
        ("whole", ctypes.c_double),
    ]


class ProcessRow(ctypes.Structure):
    _fields_ = _words("-maps mappings mappings_count -folder -size_file threads size")


class ThreadRow(ctypes.Structure):
    _fields_ = [
        *_words("-tid -schedstat -syscall -sched process frames frames_size slept_size"),
        ("slept", ctypes.c_char * 64),
        *_words("start end top most last_sp share_ran share_waited"),
        ("share", ctypes.c_double),
        ("credit", ctypes.c_double),
        *_words("still asked waiting ran_ns waits shared"),
    ]


class SampleRow(ctypes.Structure):
    _fields_ = [
        *_words("check due -ending -error -status whole at_ns since_ns resumed_ns base size frames frames_end"),
        ("registers", ctypes.c_uint64 * 36),
    ]


class FramesRow(ctypes.Structure):
    _fields_ = _words(
        "spans spans_count size -thread_id -interp -frame -chunk -cframe -base_frame ident interpreter by_cframe "
        "root_cframe cframe_size -cframe_current -cframe_previous previous code code_mask frame_size most "
        "chunks chunks_count room loose loose_count codes codes_count"
    )


class Rounds(ctypes.Structure):
    _fields_ = _words(
        "machine threads checks processes processes_count dues dues_count due under_way check "
        "samples samples_most samples_count into into_end frames frames_end -own_sched -policy -news stopping rest_ns "
        "last_stop_ns slot_ns first_shift_ns shift_ns why rounds own_is_read own_is_wanted own_began_ns"
    )


MOST_EXTRAS = 64
EXTRAS_SIZE = 8 + 24 * MOST_EXTRAS
"""Size in bytes of struct extras (stop.h): a count, then address, size and offset of each additional memory
range to read.
"""
MAX_SLEPT = 64

Call = Callable[[int], None]
"""Type of the compiled function sample_rounds() of rounds.c, whose argument is the address of a Rounds structure."""


@cache
def sample_rounds(with_gil: bool) -> Call | None:
    """Load the compiled sampling loop and return its function. Return None if there is none for this machine
    or it may not be loaded.

    Args:
        with_gil: True to keep the GIL during calls, so that no other thread can delay the resume of a stopped
            thread.
    """
    path = Path(__file__).parent / f"rounds.{os.uname().machine}.so"
    try:
        found = (ctypes.PyDLL if with_gil else ctypes.CDLL)(str(path)).sample_rounds
    except OSError:
        return None
    found.argtypes, found.restype = (ctypes.c_void_p,), None
    return found


class StopFlag(ctypes.Structure):
    """A flag in memory that Python and the compiled sampling loop share. It is not 0 when sampling must end."""

    _fields_ = [("value", ctypes.c_uint8)]


AnyRow = TypeVar("AnyRow", bound=ctypes.Structure)


def rows_of(kind: type[AnyRow], count: int) -> ctypes.Array[AnyRow]:
    """Return a zero-filled array of `count` ctypes structures."""
    return (kind * count)()


def address_of(structure: ctypes.Structure | ctypes.Array[AnyRow]) -> int:
    return ctypes.addressof(structure)


def registers_of(sample: SampleRow, count: int) -> npt.NDArray[np.uint64]:
    """Return the first `count` register words of a sample that the compiled loop took, in the order of
    user_regs_struct.
    """
    return np.frombuffer(sample.registers, np.uint64, count)
