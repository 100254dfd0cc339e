"""One process under PTRACE_SINGLESTEP on x86-64 Linux, with registers after each instruction and memory on demand."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_TRACEME_STOP = 'kill -STOP $$; exec "$0" "$@"'
PTRACE_POKETEXT, PTRACE_CONT, PTRACE_SINGLESTEP, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH = 4, 7, 9, 12, 13, 17
PTRACE_SEIZE = 0x4206
O_TRACEEXEC, O_TRACEEXIT, O_EXITKILL = 0x10, 0x40, 0x100000
EVENT_EXEC, EVENT_EXIT, EVENT_STOP = 4, 6, 128
WALL = 0x40000000
STEPPED = 0x057F
"""The wait status of a plain SIGTRAP stop."""

AT_PHDR, AT_BASE, AT_ENTRY = 3, 7, 9

RIP, RSP, RAX, ORIG_RAX = 16, 19, 10, 15
"""Indices of registers in user_regs_struct."""

_libc = ctypes.PyDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


class Ended(Exception):
    """An exception for a process that is about to end or has ended."""


class Tracee:
    """A program that is stopped before its first instruction. Only the main thread is traced.

    Attributes:
        regs: The 27 words of user_regs_struct at the last stop, which step() reads.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._buffer = (ctypes.c_ulong * 27)()
        self._address = ctypes.addressof(self._buffer)
        self.regs = memoryview(self._buffer).cast("B").cast("Q")
        self._cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(self._cpus)})  # a step on one fixed CPU is three times as fast
        self._launched = subprocess.Popen(
            ["/bin/sh", "-c", _TRACEME_STOP, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env if env is not None else {"LANG": "C", "PATH": os.environ.get("PATH", "")},
        )
        self.pid = self._launched.pid
        try:
            while self._state() != "T":
                time.sleep(0.001)
            if _ptrace(PTRACE_SEIZE, self.pid, None, O_TRACEEXEC | O_TRACEEXIT | O_EXITKILL):
                raise OSError(ctypes.get_errno(), "PTRACE_SEIZE")
            os.kill(self.pid, signal.SIGCONT)
            while self._wait() >> 16 != EVENT_EXEC:
                _ptrace(PTRACE_CONT, self.pid, None, None)
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        except BaseException:
            self.close()
            raise
        self._read_registers()
        self.pending = 0

    def _state(self) -> str:
        with open(f"/proc/{self.pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self._launched.returncode = os.waitstatus_to_exitcode(status)
            raise Ended
        return status

    def _read_registers(self) -> None:
        if _ptrace(PTRACE_GETREGS, self.pid, None, self._address):
            raise OSError(ctypes.get_errno(), "PTRACE_GETREGS")

    def step(self) -> int:
        """Execute one instruction.

        Returns:
            0, or the signal that stopped the tracee before the instruction. The next step delivers that signal.

        Raises:
            Ended: The tracee is at its exit stop, where registers and memory can still be read.
        """
        signum, self.pending = self.pending, 0
        _ptrace(PTRACE_SINGLESTEP, self.pid, None, signum)
        _, status = os.waitpid(self.pid, WALL)
        if status != STEPPED:
            self._unusual(status)
        _ptrace(PTRACE_GETREGS, self.pid, None, self._address)
        return self.pending

    def _unusual(self, status: int) -> None:
        if not os.WIFSTOPPED(status) or status >> 16 == EVENT_EXIT:
            if not os.WIFSTOPPED(status):
                self._launched.returncode = os.waitstatus_to_exitcode(status)
            raise Ended
        if status >> 16 == EVENT_EXEC:
            os.close(self._memory)
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        elif status >> 16 == 0 and os.WSTOPSIG(status) != signal.SIGTRAP:
            self.pending = os.WSTOPSIG(status)

    def read(self, avma: int, size: int) -> bytes:
        """Return at most size bytes, fewer where memory is unreadable."""
        try:
            return os.pread(self._memory, size, avma)
        except (OSError, OverflowError):
            return b""

    def word(self, avma: int) -> int:
        return int.from_bytes(self.read(avma, 8), "little")

    def run_to(self, avma: int) -> None:
        """Run at full speed to a breakpoint at this address."""
        before = self.read(avma, 8)
        self._poke(avma, b"\xcc" + before[1:])
        signum = 0
        while True:
            _ptrace(PTRACE_CONT, self.pid, None, signum)
            status = self._wait()
            signum = os.WSTOPSIG(status) if status >> 16 == 0 else 0
            if signum == signal.SIGTRAP:
                self._read_registers()
                if self.regs[RIP] == avma + 1:
                    break
                signum = 0
        self._poke(avma, before)
        self.regs[RIP] = avma
        if _ptrace(PTRACE_SETREGS, self.pid, None, self._address):
            raise OSError(ctypes.get_errno(), "PTRACE_SETREGS")

    def _poke(self, avma: int, eight: bytes) -> None:
        if _ptrace(PTRACE_POKETEXT, self.pid, avma, int.from_bytes(eight, "little")):
            raise OSError(ctypes.get_errno(), "PTRACE_POKETEXT")

    def auxv(self) -> dict[int, int]:
        with open(f"/proc/{self.pid}/auxv", "rb") as file:
            words = memoryview(file.read()).cast("Q")
        return dict(zip(words[::2], words[1::2], strict=True))

    def symbol(self, name: str) -> int:
        """Return the address of a symbol in the program itself, not in a library."""
        path = os.readlink(f"/proc/{self.pid}/exe")
        with open(path, "rb") as file:
            elf = ELFFile(file)
            bias = self.auxv()[AT_ENTRY] - elf.header.e_entry
            for section in (".symtab", ".dynsym"):
                table = elf.get_section_by_name(section)
                found = table.get_symbol_by_name(name) if isinstance(table, SymbolTableSection) else None
                for symbol in found or []:
                    if symbol.entry.st_shndx != "SHN_UNDEF":
                        return int(symbol.entry.st_value + bias)
        raise KeyError(f"{path} has no symbol {name}")

    def detach_stopped(self) -> None:
        """Detach, and leave the process stopped so that a debugger can attach."""
        if _ptrace(PTRACE_DETACH, self.pid, None, signal.SIGSTOP):
            raise OSError(ctypes.get_errno(), "PTRACE_DETACH")

    def close(self) -> None:
        os.sched_setaffinity(0, self._cpus)
        if hasattr(self, "_memory"):
            os.close(self._memory)
            del self._memory
        if self._launched.returncode is None:
            self._launched.kill()
            _ptrace(PTRACE_CONT, self.pid, None, None)  # SIGKILL does not end its exit stop
            while self._launched.returncode is None:
                try:
                    _, status = os.waitpid(self.pid, WALL)
                except ChildProcessError:
                    status = 0
                if os.WIFSTOPPED(status):
                    _ptrace(PTRACE_CONT, self.pid, None, None)
                else:
                    self._launched.returncode = os.waitstatus_to_exitcode(status)
