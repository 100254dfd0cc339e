"""The goroutines of a Go program that no thread runs: their states, and where their stacks are.

`runtime.allgs` lists all goroutines. Each keeps the pc and the sp with which it continues (gobuf), and why it waits
(Go 1.17 to 1.26, runtime/runtime2.go). Fields after gobuf moved by 8 bytes in Go 1.23 and back in 1.25. Of the two
layouts that one is used in which all goroutines have possible states and different numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.interpreters.detection_symbols import Symbol, Wanted
from pyprof.problem_counters import Diagnostics

WANTED = Wanted(b"runtime.allgs\0", (b"runtime.waitReasonStrings\0",))
"""The symbols that read_goroutines() needs. Stripped programs have none."""

MAX_GOROUTINES = 10_000
"""Maximum number of goroutines that are read, in the order of Go's list."""
_MAX_STACK = 1 << 30
"""Maximum size in bytes of a plausible stack: Go's own limit for 64-bit machines."""
_SP, _PC = 56, 64
_STATUS = (144, 152)
_NUMBER, _SINCE, _REASON = 8, 24, 32
"""Offsets of goid, waitsince and waitreason from atomicstatus."""
_HEAD = _STATUS[-1] + _REASON + 1
_SCAN = 0x1000
_WAITING, _DEAD = 4, 6
_STATES = {1: "runnable", _WAITING: "waiting", 9: "preempted", 10: "leaked"}
"""The states of goroutines that no thread runs."""
_MAX_STATUS = 16
_MAX_REASON = 64
_MINUTE_NS = 60_000_000_000

Read = Callable[[int, int], bytes]


class WaitingGoroutine(NamedTuple):
    """A goroutine that no thread runs.

    Attributes:
        number: Its number in Go's tracebacks (goid).
        state: Its state as Go's tracebacks print it, such as "chan receive, 3 minutes".
        pc: Address at which it continues.
        sp: Its stack pointer.
        stack_end: Address after its stack.
    """

    number: int
    state: str
    pc: int
    sp: int
    stack_end: int


def read_goroutines(
    read: Read, symbols: Sequence[Symbol], now_ns: int = 0, diagnostics: Diagnostics | None = None
) -> list[tuple[WaitingGoroutine, int]]:
    """Return the goroutines of a process that no thread runs, each with the address of its struct g.

    Args:
        read: Reads the memory of the process.
        symbols: Those of WANTED, by their address in the process.
        now_ns: The CLOCK_MONOTONIC time, 0 if it is not known: then no state has the minutes of the wait.
        diagnostics: Counts goroutines that are left out because there are too many.

    Raises:
        FormatError: The list or the layout of goroutines is not as expected.
    """
    at = {symbol.name: symbol.avma for symbol in symbols}
    pointer, count = _words(read, at.get(b"runtime.allgs", 0), 2)
    if count > MAX_GOROUTINES and diagnostics is not None:
        diagnostics.count("goroutines_left_out", count - MAX_GOROUTINES)
    count = min(count, MAX_GOROUTINES)
    heads = [(g, read(g, _HEAD)) for g in _words(read, pointer, count) if _is_address(g)]
    whole = [(g, head) for g, head in heads if len(head) == _HEAD]
    status = next((status for status in _STATUS if _is_plausible([head for _, head in whole], status)), None)
    if status is None:
        raise FormatError("allgs", pointer, "goroutines that are not plausible")
    strings = at.get(b"runtime.waitReasonStrings", 0)
    found = ((_decode(read, head, status, strings, now_ns), g) for g, head in whole)
    return [(goroutine, g) for goroutine, g in found if goroutine is not None]


def is_unchanged(read: Read, g: int, goroutine: WaitingGoroutine) -> bool:
    """Return True if a goroutine still has the same registers: it has not run while its stack was copied."""
    return read(g + _SP, 16) == struct.pack("<2Q", goroutine.sp, goroutine.pc)


def _words(read: Read, avma: int, count: int) -> tuple[int, ...]:
    data = read(avma, 8 * count) if _is_address(avma) else b""
    if len(data) < 8 * count:
        raise FormatError("allgs", avma, "not readable")
    return struct.unpack(f"<{count}Q", data)


def _is_address(avma: int) -> bool:
    return 0 < avma < 1 << 62


def _is_plausible(heads: Sequence[bytes], status: int) -> bool:
    """Return True if all goroutines have possible states and different numbers with atomicstatus at this offset."""
    numbers = []
    for head in heads:
        state, number = _state(head, status), int.from_bytes(head[status + _NUMBER : status + _NUMBER + 8], "little")
        if state > _MAX_STATUS:
            return False
        if state not in (0, _DEAD):
            numbers.append(number)
    return bool(numbers) and len(set(numbers)) == len(numbers) and all(0 < number < 1 << 62 for number in numbers)


def _state(head: bytes, status: int) -> int:
    return int.from_bytes(head[status : status + 4], "little") & ~_SCAN


def _decode(read: Read, head: bytes, status: int, strings: int, now_ns: int) -> WaitingGoroutine | None:
    """Return the goroutine in the first bytes of a struct g, or None if a thread runs it or it has no stack."""
    low, high = struct.unpack_from("<2Q", head)
    sp, pc = struct.unpack_from("<2Q", head, _SP)
    state = _state(head, status)
    if state not in _STATES or not pc or sp % 8 or not low < sp < high <= low + _MAX_STACK or not _is_address(high):
        return None
    number, since = (struct.unpack_from("<Q", head, status + offset)[0] for offset in (_NUMBER, _SINCE))
    text = _STATES[state]
    if state == _WAITING:
        reason = head[status + _REASON]
        text = (_read_reason(read, strings + 16 * reason) if strings and reason else "") or text
        minutes = (now_ns - since) // _MINUTE_NS if since else 0
        text += f", {minutes} minutes" if minutes > 0 else ""
    return WaitingGoroutine(number, text, pc, sp, high)


def _read_reason(read: Read, avma: int) -> str:
    """Return the string whose header is at an address, "" if it is not readable."""
    head = read(avma, 16)
    pointer, size = struct.unpack("<2Q", head) if len(head) == 16 else (0, 0)
    text = read(pointer, size) if 0 < size <= _MAX_REASON and _is_address(pointer) else b""
    return "".join(filter(str.isprintable, text.decode("utf-8", "replace")))
