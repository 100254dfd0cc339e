"""Goroutines of a Go program: the one that a thread runs, and those that no thread runs, with their stacks.

GoroutineFinder reads from the code of Go's runtime which offsets lead from a thread to its goroutine.

The offsets of Go's structures differ between versions. `runtime.systemstack` (asm_amd64.s) uses all of them to go from
the goroutine's stack to that of the scheduler. Its instructions have stayed the same since Go 1.5:

    mov %fs:tls,%rax               the current g; position-independent: mov $tls,%rcx or mov tls@GOT,%rcx first
    mov m(%rax),%rbx
    cmp gsignal(%rbx),%rax
    mov g0(%rbx),%rdx
    cmp curg(%rbx),%rax
    mov sched(%rdx),%rbx or %rsp

Each of these instructions must be there. For a version with other instructions, stacks end where Go's runtime has
switched stacks.

Programs that give labels to their goroutines (runtime/pprof) have `runtime_setProfLabel`, which stores them:

    mov %rax,labels(%r14)          %r14 is the current g since Go 1.17

`runtime.allgs` lists all goroutines. Each goroutine has the pc and the sp with which it continues (gobuf), and the
reason why it waits (Go 1.17 to 1.26, runtime/runtime2.go). Fields after gobuf moved by 8 bytes in Go 1.23 and back in
1.25. Of the two layouts that one is used in which all goroutines have possible states and different numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyprof.errors import FormatError
from pyprof.interpreters.detection_symbols import KnownSymbols, Symbol, Wanted
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from pyprof.problem_counters import Diagnostics

_SYSTEMSTACK, _SET_LABELS = b"runtime.systemstack", b"runtime/pprof.runtime_setProfLabel"
_WANTED = Wanted(b"", go_functions=(_SYSTEMSTACK, _SET_LABELS))
_MAX_CODE = 512
_MAX_OFFSET = 4096
_MAX_TLS = 1 << 20

_TLS = re.compile(
    rb"\x64\x48\x8b\x04\x25(?P<fixed>....)"
    rb"|\x48\xc7\xc1(?P<moved>....)\x64\x48\x8b\x01"
    rb"|\x48\x8b\x0d(?P<stored>....)(?P<end>)\x64\x48\x8b\x01",
    re.DOTALL,
)
_M = rb"\x48\x8b(?:\x58(.)|\x98(....))"  # mov m(%rax),%rbx
_GSIGNAL = rb"\x48\x3b(?:\x43(.)|\x83(....))"  # cmp gsignal(%rbx),%rax
_G0 = rb"\x48\x8b(?:\x13|\x53(.)|\x93(....))"  # mov g0(%rbx),%rdx
_CURG = _GSIGNAL
_SCHED = rb"\x48\x8b(?:\x5a(.)|\x62(.))"  # mov sched(%rdx),%rbx; mov sched(%rdx),%rsp
_STORED_LABELS = re.compile(rb"\x49\x89\x86(....)", re.DOTALL)  # mov %rax,labels(%r14)
_STEPS = tuple(re.compile(each, re.DOTALL) for each in (_M, _GSIGNAL, _G0, _CURG, _SCHED))


class GoroutineFinder:
    """A finder of the Go runtime in processes. It searches each file once.

    Only the program itself is searched. Libraries are not, because a process may have hundreds of them.
    """

    def __init__(self, symbols: KnownSymbols) -> None:
        self._symbols = symbols
        self._known: dict[tuple[str, int, str], GoroutineOffsets | None] = {}

    def find_offsets(self, space: AddressSpace) -> GoroutineOffsets | None:
        """Return the offsets that lead from a thread of a process to its goroutine, or None if the process runs no Go
        program whose runtime can be read.

        Raises:
            OSError: The process has ended.
        """
        program = next((m for m in space.modules if m.has_file and any(part.executable for part in m.mappings)), None)
        found = self._symbols.find_first(space, [program], _WANTED) if program is not None else None
        if found is None:
            return None
        module, symbols = found
        key = module.dev, module.inode, module.path
        if key not in self._known:
            self._known[key] = _decode(space, symbols.symbols)
        return self._known[key]


def _decode(space: AddressSpace, symbols: Sequence[Symbol]) -> GoroutineOffsets | None:
    code = [(symbol.name, symbol.avma, space.read(symbol.avma, min(symbol.size, _MAX_CODE))) for symbol in symbols]
    decoded = (decode_offsets(data, avma, space) for name, avma, data in code if name == _SYSTEMSTACK)
    found = next(filter(None, decoded), None)
    labels = next((decode_labels_offset(data) for name, _, data in code if name == _SET_LABELS), 0)
    return replace(found, labels=labels) if found is not None else None


def decode_offsets(code: bytes, avma: int, space: AddressSpace) -> GoroutineOffsets | None:
    """Return the offsets that the code of `runtime.systemstack` uses, or None if it has other instructions.

    Args:
        code: The function's code.
        avma: Address of the function in the process.
        space: The process, in which a position-independent program has the offset of its thread-local word.
    """
    found = _TLS.search(code)
    if found is None:
        return None
    tls = _signed(found["fixed"] or found["moved"] or b"")
    if found["stored"]:
        stored = space.read(avma + found.start("end") + _signed(found["stored"]), 8)
        tls = int.from_bytes(stored, "little", signed=True) if len(stored) == 8 else 0
    at, offsets = found.end(), []
    for step in _STEPS:
        match = step.search(code, at)
        if match is None:
            return None
        at = match.end()
        offsets.append(_signed(next(filter(None, match.groups()), b"")))
    m, gsignal, g0, curg, sched = offsets
    inside = all(0 <= offset < _MAX_OFFSET and not offset % 8 for offset in offsets)
    if not inside or not tls or not m or not curg or not 16 <= sched < 128 or not -_MAX_TLS <= tls < _MAX_TLS:
        return None
    return GoroutineOffsets(tls, m, g0, gsignal, curg, sched)


def decode_labels_offset(code: bytes) -> int:
    """Return the offset in bytes of a goroutine's labels in struct g, which the code of `runtime_setProfLabel` uses, or
    0.
    """
    found = _STORED_LABELS.search(code)
    offset = _signed(found[1]) if found is not None else 0
    return offset if 0 < offset < _MAX_OFFSET and not offset % 8 else 0


def _signed(data: bytes) -> int:
    if len(data) == 4:
        return int(struct.unpack("<i", data)[0])
    return int.from_bytes(data, "little", signed=True)


WANTED = Wanted(b"runtime.allgs\0", (b"runtime.waitReasonStrings\0",))
"""The symbols that read_goroutines() needs. Stripped programs have none."""

MAX_GOROUTINES = 10_000
"""Maximum number of goroutines that are read, in the order of Go's list."""
_MAX_STACK = 1 << 30
"""Maximum size in bytes of a plausible stack: Go's own limit for 64-bit machines."""
_SP, _PC = 56, 64
_STATUS = (144, 152)
_NUMBER, _SINCE, _REASON = 8, 24, 32
"""Offsets in bytes of goid, waitsince and waitreason in Go's struct g, relative to the field atomicstatus."""
_HEAD = _STATUS[-1] + _REASON + 1
_SCAN = 0x1000
_WAITING, _DEAD = 4, 6
_STATES = {1: "runnable", _WAITING: "waiting", 9: "preempted", 10: "leaked"}
"""Names of the states of goroutines that no thread runs, by the value of atomicstatus."""
_MAX_STATUS = 16
_MAX_REASON = 64
_MINUTE_NS = 60_000_000_000

Read = Callable[[int, int], bytes]


class WaitingGoroutine(NamedTuple):
    """A goroutine that no thread runs.

    Attributes:
        number: Number of the goroutine in Go's tracebacks (goid).
        state: State as Go's tracebacks print it, such as "chan receive, 3 minutes".
        pc: Address at which the goroutine continues.
        sp: Stack pointer with which the goroutine continues.
        stack_end: Address after the goroutine's stack.
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
        symbols: The symbols of WANTED, with their addresses in the process.
        now_ns: The CLOCK_MONOTONIC time, 0 if it is not known: then no state has the minutes of the wait.
        diagnostics: Counters of the recording, for goroutines that are left out because there are too many.

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
    found = ((_decode_goroutine(read, head, status, strings, now_ns), g) for g, head in whole)
    return [(goroutine, g) for goroutine, g in found if goroutine is not None]


def is_unchanged(read: Read, g: int, goroutine: WaitingGoroutine) -> bool:
    """Return True if a goroutine still has the registers that were read before, so that it has not run while its stack
    was copied.
    """
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


def _decode_goroutine(read: Read, head: bytes, status: int, strings: int, now_ns: int) -> WaitingGoroutine | None:
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
