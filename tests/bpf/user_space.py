"""The BPF program compiled for user space, which runs on memory that the caller provides (native/in_user_space.c).

Its input is the kernel's state and then samples. Its output is the cost of each sample and the records. It is built
with the address and undefined behaviour sanitizers, whose reports fail the test.
"""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from pyprof.collectors.bpf.ring_buffer_records import U64, LossReason, Records, read_records
from tests.support import build, missing

MOST_RUN_NS = 1_000_000
RED_ZONE = 128
STACK_BEGINNING = 8 << 10
_MEMORY, _CONSTANT, _ENTRY, _SETTING, _DUMP, _SAMPLE, _POKE, _LEAVE = range(1, 9)
_COMMAND = struct.Struct("<Q24sQQQ")
_SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_FLAGS = (
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",
    "-Wno-parentheses",
)


@cache
def _program() -> Path:
    if os.uname().machine != "x86_64":
        missing("needs x86-64, whose registers it is given")
    folder = Path(tempfile.mkdtemp(prefix="pyprof-in-user-space-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).parent / "native" / "in_user_space.c"
    return build(source, folder / "in_user_space", *_FLAGS, *_SANITIZED)


@dataclass(frozen=True)
class Ran:
    """One sample of the BPF program.

    Attributes:
        calls: Number of helper calls.
        turns: Number of loop iterations.
        late: Number of both after the time limit.
        records: (flags of the submission, bytes) of each record.
    """

    calls: int
    turns: int
    late: int
    records: list[tuple[int, bytes]]

    @property
    def words(self) -> U64:
        """The words of the only record."""
        ((_, data),) = self.records
        return np.frombuffer(data + bytes(-len(data) % 8), np.uint64)

    @property
    def record(self) -> Records:
        """The only record as the reader of the ring parses it."""
        return read_records(self.words, [0])

    @property
    def copies(self) -> tuple[bytes, bytes]:
        """The copies of the stack and of the interrupted stack, both inside the record."""
        stack, below, _ = self.three_copies
        return stack, below

    @property
    def three_copies(self) -> tuple[bytes, bytes, bytes]:
        """The copies of the stack, of the interrupted stack and of the goroutine's stack, all inside the record."""
        ((_, data),), record = self.records, self.record
        columns = (record.offset, record.size, record.below_size, record.goroutine_size)
        at, size, below, goroutine = (int(column[0]) for column in columns)
        edges = (at, at + size, at + size + below, at + size + below + goroutine)
        assert edges[3] <= len(data)
        return data[edges[0] : edges[1]], data[edges[1] : edges[2]], data[edges[2] : edges[3]]


def counted(counters: Mapping[int, bytes]) -> dict[LossReason, int]:
    """Return the non-zero counters of a dump of the counters map."""
    words = struct.unpack_from(f"<{len(LossReason)}Q", counters[0])
    return {reason: words[reason] for reason in LossReason if words[reason]}


@dataclass
class UserSpace:
    """A sequence of commands for the BPF program in user space."""

    _said: list[bytes] = field(default_factory=list)
    _asked: list[int] = field(default_factory=list)

    def _say(self, what: int, name: str = "", a: int = 0, b: int = 0, data: bytes = b"") -> None:
        self._said += [_COMMAND.pack(what, name.encode(), a, b, len(data)), data, bytes(-len(data) % 8)]

    def memory(self, start: int, end: int, data: bytes) -> None:
        """Add a mapping that can be read up to the end of data. Mappings are added in ascending order."""
        self._say(_MEMORY, "", start, end, data)

    def poke(self, address: int, value: int) -> None:
        """Set a word of memory."""
        self._say(_POKE, "", address, value & (1 << 64) - 1)

    def constant(self, name: str, value: int) -> None:
        """Set a constant of the BPF program."""
        self._say(_CONSTANT, name, value)

    def entry(self, table: str, key: int, value: bytes) -> None:
        """Set a map entry, with the value padded with zeros."""
        self._say(_ENTRY, table, key, 0, value)

    def setting(self, name: str, value: int) -> None:
        """Set a property of the simulated kernel or thread.

        Args:
            name: One of step (nanoseconds of each helper call), ring_bytes, is_locked (mappings change), kernel_frames,
                namespace_pid, start_stack, code, and pointer (the thread pointer).
            value: The value.
        """
        self._say(_SETTING, name, value)

    def sample(self, pid: int, tid: int, registers: Sequence[int], in_kernel: bool = False) -> None:
        """Sample a thread.

        Args:
            pid: Process id.
            tid: Thread id.
            registers: User-mode registers in DWARF's order.
            in_kernel: Whether the thread is in the kernel.
        """
        self._say(_SAMPLE, "", pid << 32 | tid, in_kernel, struct.pack(f"<{len(registers)}Q", *registers))
        self._asked.append(_SAMPLE)

    def leave(self, pid: int, tid: int, registers: Sequence[int], state: int) -> None:
        """Let a thread leave its processor.

        Args:
            pid: Process id.
            tid: Thread id.
            registers: User-mode registers in DWARF's order.
            state: The kernel's task state.
        """
        self._say(_LEAVE, "", pid << 32 | tid, state, struct.pack(f"<{len(registers)}Q", *registers))
        self._asked.append(_SAMPLE)

    def dump(self, table: str) -> None:
        """Request all entries of a map."""
        self._say(_DUMP, table)
        self._asked.append(_DUMP)

    def run(self, seconds: float = 60) -> tuple[list[Ran], list[dict[int, bytes]]]:
        """Execute the commands, and return all samples and all dumps."""
        done = subprocess.run(
            [_program()], input=b"".join(self._said), capture_output=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, done.stderr.decode()[-4000:]
        out = _Output(done.stdout)
        samples: list[Ran] = []
        dumps: list[dict[int, bytes]] = []
        for what in self._asked:
            if what == _SAMPLE:
                calls, turns, late, count = out.words(4)
                samples.append(Ran(calls, turns, late, [out.sized() for _ in range(count)]))
            else:
                dumps.append(dict(out.sized() for _ in range(out.words(1)[0])))
        assert out.at == len(done.stdout)
        return samples, dumps


@dataclass
class _Output:
    data: bytes
    at: int = 0

    def words(self, count: int) -> tuple[int, ...]:
        self.at += 8 * count
        return struct.unpack_from(f"<{count}Q", self.data, self.at - 8 * count)

    def sized(self) -> tuple[int, bytes]:
        """Read a word, and bytes that follow their length."""
        word, size = self.words(2)
        data = self.data[self.at : self.at + size]
        self.at += size + -size % 8
        return word, data
