"""The system call bpf(2): maps, type information (BTF) and programs as descriptors. Failed calls return
-errno instead of raising.
"""

from __future__ import annotations

import errno
import signal
import struct
import time

import numpy as np

from pyprof.collectors.linux import libc
from pyprof.lazy_dataclasses import dataclass

ARRAY = 2
"""BPF_MAP_TYPE_ARRAY: type of an array map of bpf(2)."""
PERF_EVENT, RAW_TRACEPOINT = 7, 17
"""Types of BPF programs (enum bpf_prog_type)."""
RDONLY_PROG = 1 << 7

_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _PROG_LOAD, _RAW_TRACEPOINT_OPEN, _BTF_LOAD, _FREEZE = 0, 1, 2, 3, 5, 17, 18, 22
_LOOKUP_BATCH = 24
_BATCH = 1024
_LOG_SIZE = 1 << 20
_INTERRUPTIBLE_LOADS = 2
"""Number of attempts to load a BPF program before signals are blocked: the verifier fails with EAGAIN if one is
pending.
"""
_LOAD_TIMEOUT_S = 5.0
"""Time in seconds for attempts to load a BPF program. Stops by another profiler or a debugger also interrupt
the verifier, and they cannot be blocked.
"""


def _address(data: bytes | bytearray) -> int:
    """Return the address of a bytes object. The caller must keep the object until the system call returns."""
    return int(np.frombuffer(data, np.uint8).ctypes.data) if data else 0


def create_map(kind: int, key_size: int, value_size: int, entries: int, flags: int, name: str) -> int:
    attr = bytearray(72)
    struct.pack_into("=IIIIIII16s", attr, 0, kind, key_size, value_size, entries, flags, 0, 0, name.encode()[:15])
    return libc.bpf(_MAP_CREATE, attr)


def _element(command: int, fd: int, key: bytes, value: bytes | bytearray, flags: int = 0) -> int:
    attr = bytearray(struct.pack("=IIQQQ", fd, 0, _address(key), _address(value), flags))
    return libc.bpf(command, attr)


def lookup_element(fd: int, key: bytes, size: int) -> bytes | None:
    """Return the value of a key of a BPF map, or None if there is none."""
    value = bytearray(size)
    return bytes(value) if _element(_LOOKUP, fd, key, value) == 0 else None


def update_element(fd: int, key: bytes, value: bytes) -> int:
    return _element(_UPDATE, fd, key, value)


def delete_element(fd: int, key: bytes) -> int:
    return _element(_DELETE, fd, key, b"")


def read_values(fd: int, key_size: int, value_size: int) -> list[bytes]:
    """Return all values of a BPF hash map. If the map changes meanwhile, some may appear twice."""
    found: list[bytes] = []
    cursor, taken = bytearray(max(key_size, 4)), bytearray(max(key_size, 4))
    keys, room = bytearray(_BATCH * key_size), bytearray(_BATCH * value_size)
    first, end = True, 0
    while end == 0:
        attr = bytearray(struct.pack("=QQQQIIQQ", 0 if first else _address(cursor), _address(taken), _address(keys),
                                     _address(room), _BATCH, fd, 0, 0))  # fmt: skip
        end = libc.bpf(_LOOKUP_BATCH, attr)
        if end not in (0, -errno.ENOENT):
            break
        (count,) = struct.unpack_from("=I", attr, 32)
        found += [bytes(room[n * value_size : (n + 1) * value_size]) for n in range(count)]
        cursor, taken, first = taken, cursor, False
    return found


def freeze_map(fd: int) -> int:
    """Forbid further changes of a BPF map from user space."""
    return libc.bpf(_FREEZE, bytearray(struct.pack("=I", fd)))


def load_btf(data: bytes) -> tuple[int, str]:
    """Load BTF type information into the kernel. Return (descriptor or -errno, the kernel's log)."""
    log = bytearray(_LOG_SIZE)
    attr = bytearray(struct.pack("=QQIIII", _address(data), 0, len(data), 0, 0, 0))
    fd = libc.bpf(_BTF_LOAD, attr)
    if fd < 0:
        attr = bytearray(struct.pack("=QQIIII", _address(data), _address(log), len(data), len(log), 1, 0))
        fd = libc.bpf(_BTF_LOAD, attr)
    return fd, _text(log)


@dataclass(frozen=True, slots=True)
class Program:
    """The arguments of bpf(BPF_PROG_LOAD), which loads a BPF program.

    Attributes:
        kind: Type of the program.
        name: Name of the program.
        code: Its instructions as bytes.
        license: Its license.
        btf: Descriptor of its type information.
        functions: BTF records of func_info.
        function_size: Size in bytes of one func_info record.
        lines: BTF records of line_info.
        line_size: Size in bytes of one line_info record.
    """

    kind: int
    name: str
    code: bytes
    license: bytes
    btf: int
    functions: bytes
    function_size: int
    lines: bytes
    line_size: int


def load_program(program: Program, log_level: int = 0) -> tuple[int, str]:
    """Load a BPF program. Return (descriptor or -errno, the verifier's log).

    The log is empty if the program was accepted and log_level is 0.
    """
    log = bytearray(_LOG_SIZE if log_level else 0)
    licence = program.license.rstrip(b"\0") + b"\0"
    attr = bytearray(
        struct.pack(
            "=IIQQIIQII16sIIIIQIIQIIII",
            program.kind, len(program.code) // 8, _address(program.code), _address(licence),
            log_level, len(log), _address(log), 0, 0, program.name.encode()[:15], 0, 0,
            program.btf, program.function_size, _address(program.functions),
            len(program.functions) // program.function_size if program.function_size else 0, program.line_size,
            _address(program.lines), len(program.lines) // program.line_size if program.line_size else 0, 0, 0, 0,
        )
    )  # fmt: skip
    fd, attempts, until = -errno.EAGAIN, 0, time.monotonic() + _LOAD_TIMEOUT_S
    while fd == -errno.EAGAIN and (attempts <= _INTERRUPTIBLE_LOADS or time.monotonic() < until):
        blocked = () if attempts < _INTERRUPTIBLE_LOADS else signal.valid_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            fd = libc.bpf(_PROG_LOAD, attr)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        attempts += 1
    if fd < 0 and fd != -errno.EAGAIN and not log_level:
        return load_program(program, 1)
    return fd, _text(log)


def open_raw_tracepoint(program: int, name: str) -> int:
    """Attach a BPF program to a raw tracepoint until the returned descriptor is closed."""
    text = name.encode() + b"\0"
    return libc.bpf(_RAW_TRACEPOINT_OPEN, bytearray(struct.pack("=QII", _address(text), program, 0)))


def _text(log: bytearray) -> str:
    return bytes(log).partition(b"\0")[0].decode(errors="replace")
