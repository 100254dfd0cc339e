"""The offsets that lead from a thread of a Go program to its goroutine, read from the code of Go's runtime.

The offsets of Go's structures differ between versions. `runtime.systemstack` (asm_amd64.s) uses all of them to go from
the goroutine's stack to that of the scheduler. Its instructions have stayed the same since Go 1.5:

    mov %fs:tls,%rax               the current g; position-independent: mov $tls,%rcx or mov tls@GOT,%rcx first
    mov m(%rax),%rbx
    cmp gsignal(%rbx),%rax
    mov g0(%rbx),%rdx
    cmp curg(%rbx),%rax
    mov sched(%rdx),%rbx or %rsp

Each of these must be there. A version with other instructions has no goroutines' stacks, and its stacks end where the
runtime leaves them.

Programs that give labels to their goroutines (runtime/pprof) have `runtime_setProfLabel`, which stores them:

    mov %rax,labels(%r14)          %r14 is the current g since Go 1.17
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from pyprof.interpreters.detection_symbols import KnownSymbols, Symbol, Wanted
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets

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
        """Return the offsets that lead from a thread of a process to its goroutine, or None if it runs no Go that can
        be read.

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
        avma: Its address in the process.
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
    """Return the offset in struct g of its labels, which the code of `runtime_setProfLabel` uses, or 0."""
    found = _STORED_LABELS.search(code)
    offset = _signed(found[1]) if found is not None else 0
    return offset if 0 < offset < _MAX_OFFSET and not offset % 8 else 0


def _signed(data: bytes) -> int:
    if len(data) == 4:
        return int(struct.unpack("<i", data)[0])
    return int.from_bytes(data, "little", signed=True)
