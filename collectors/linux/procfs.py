"""What /proc says about a process. Paths in /proc/PID/maps are hostile input; everything else is the kernel's.

Reads go through a descriptor of /proc/PID, so that a recycled pid is never mistaken for the process.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial
from itertools import compress
from typing import Literal

from pyprof.collectors.linux.libc import memory_reader
from pyprof.errors import FormatError
from pyprof.model.arch import Arch, find_arch, native_arches
from pyprof.model.modules import MAX_MAPPINGS, AddressSpace, Mapping, ReadMemory
from pyprof.objfile import io_deadline
from pyprof.records import dataclass

_MOST = (1 << 64) - 1
_MAPS_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-][sp]) ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20}) *(.*)",
    re.DOTALL,
)
_PROC = "/proc"
_CENSUS = re.compile(rb"\S+ \S+ \S+ \d+/(\d+) ([1-9]\d*)\s*")
"""Threads that there are, and the last number that was given."""
_CHUNK = 1 << 20
_LEAST_LINE = 40
"""Number of bytes of the shortest line of /proc/PID/maps."""
_LINE_WITH_PERMISSIONS = re.compile(rb"^(\S+ ([r-][w-][x-][sp]) .*)$", re.MULTILINE)
_NEIGHBOURS = 8
"""Lines before and after an executable mapping that may belong to its module."""
_SCHED_SIZE = 4096
_MOST_ARGUMENTS = 1 << 16
"""Bytes of a command line that are read: those of compilers have hundreds of folders."""


def bound_maps(text: bytes) -> bytes:
    """Return a text of /proc/PID/maps with at most MAX_MAPPINGS lines.

    The work for a process grows with its mappings. Without a bound an unprivileged process takes several seconds of
    processor time, which the recording of other processes lacks. A longer text loses the lines that are neither near
    an executable mapping nor writable, as stacks are. If there are still too many, it loses those in the middle: the
    program stands at the beginning of the address space, its first libraries and its stack at the end.
    """
    if len(text) <= MAX_MAPPINGS * _LEAST_LINE:
        return text
    lines = _LINE_WITH_PERMISSIONS.findall(text)
    if len(lines) <= MAX_MAPPINGS:
        return text
    permissions = b"".join(each for _, each in lines)
    near = bytearray(each == ord("w") for each in permissions[1::4])
    at = -1
    while (at := permissions.find(b"x", at + 1)) >= 0:
        first = max(at // 4 - _NEIGHBOURS, 0)
        near[first : at // 4 + _NEIGHBOURS + 1] = b"\1" * len(near[first : at // 4 + _NEIGHBOURS + 1])
    kept = [line for line, _ in compress(lines, near)]
    if len(kept) > MAX_MAPPINGS:
        half = MAX_MAPPINGS // 2
        kept = kept[:half] + kept[-half:]
    return b"\n".join(kept)


def parse_maps(text: bytes) -> tuple[Mapping, ...]:
    """The lines of /proc/PID/maps, ascending (proc(5)), within the bound of bound_maps().

    Line breaks in names come as \\012, other bytes as they are (not UTF-8: surrogateescape). A line that overlaps the
    one before it is dropped: the kernel writes the file page by page while the process goes on mapping.
    Raises FormatError.
    """
    mappings: list[Mapping] = []
    at, last_end = 0, 0
    for line in bound_maps(text).split(b"\n"):
        if line:
            match = _MAPS_LINE.fullmatch(line)
            if match is None:
                raise FormatError("maps", at, "not a line of /proc/PID/maps")
            start, end = int(match[1], 16), int(match[2], 16)
            inode = int(match[6])
            if end < start or inode > _MOST:
                raise FormatError("maps", at, "a mapping that ends before it starts, or of no file that can be")
            if start >= last_end:
                path = os.fsdecode(match[7].replace(b"\\012", b"\n"))
                mappings.append(
                    Mapping(start, end, match[3].decode(), int(match[4], 16), match[5].decode(), inode, path)
                )
                last_end = end
        at += len(line) + 1
    return tuple(mappings)


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat. flags: PF_* (linux/sched.h). worked: clock ticks of processor time.
    start: clock ticks since boot. stack: where that of the process's first thread begins; 0 for whoever may not know.
    """

    comm: str
    state: str
    ppid: int
    flags: int
    worked: int
    start: int
    stack: int

    @property
    def is_kernel_thread(self) -> bool:
        return bool(self.flags & 0x0020_0000)  # PF_KTHREAD

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def parse_stat(text: bytes) -> Stat:
    """One line of /proc/PID/stat; the name in it may hold blanks and brackets. Raises FormatError."""
    opening, closing = text.find(b"("), text.rfind(b")")
    fields = text[closing + 1 :].split()
    if opening < 0 or closing < opening or len(fields) < 26:
        raise FormatError("stat", max(closing, 0), "not a line of /proc/PID/stat")
    try:
        return Stat(
            os.fsdecode(text[opening + 1 : closing]),
            fields[0].decode("ascii"),
            int(fields[1]),
            int(fields[6]),
            int(fields[11]) + int(fields[12]),
            int(fields[19]),
            int(fields[25]),
        )
    except ValueError:
        raise FormatError("stat", closing, "a field is not a number") from None


def letter_of(stat: bytes) -> str:
    """The state in a line of /proc/PID/stat, of which nothing else is read: that takes a fifth of the time."""
    at = stat.rfind(b") ") + 2
    return stat[at : at + 1].decode("ascii", "replace")


class ProcDir:
    """/proc/PID of one process. Every method raises ProcessLookupError once the process is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.path = f"/proc/{pid}"
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ProcessLookupError(pid) from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        try:
            return os.open(name, flags | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            raise ProcessLookupError(self.pid) from None

    def read(self, name: str) -> bytes:
        fd = self.open(name)
        try:
            chunks = []
            while chunk := os.read(fd, _CHUNK):
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            os.close(fd)

    def link(self, name: str) -> str:
        try:
            return os.readlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            raise ProcessLookupError(self.pid) from None

    def stat(self) -> Stat:
        return parse_stat(self.read("stat"))

    def state(self) -> str:
        """The letter of stat."""
        return letter_of(self.read("stat"))

    def status(self) -> dict[str, str]:
        """/proc/PID/status: key -> text after the colon."""
        return parse_status(self.read("status"))

    def maps(self) -> bytes:
        return self.read("maps")

    def comm(self) -> str:
        return os.fsdecode(self.read("comm").rstrip(b"\n"))

    def thread_count(self) -> int:
        """Number of tasks, by one system call (the link count of the task folder)."""
        try:
            return os.stat("task", dir_fd=self.fd).st_nlink - 2
        except FileNotFoundError:
            raise ProcessLookupError(self.pid) from None

    def threads(self) -> list[int]:
        fd = self.open("task")
        try:
            return sorted(int(entry) for entry in os.listdir(fd))
        finally:
            os.close(fd)

    def children(self) -> list[int]:
        """Pids of the children of all threads; empty where the kernel has no CONFIG_PROC_CHILDREN."""
        found: list[int] = []
        for tid in self.threads():
            try:
                found += [int(word) for word in self.read(f"task/{tid}/children").split()]
            except ProcessLookupError:
                continue
        return found


def elf_arch(head: bytes) -> tuple[int, int, str] | None:
    """(e_machine, class 32 or 64, byte order) of an ELF file's first bytes; None if it is none."""
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order: Literal["little", "big"] = "little" if head[5] == 1 else "big"
    return int.from_bytes(head[18:20], order), 32 * head[4], order


def program_head(directory: ProcDir) -> bytes:
    """The first bytes of a process's program file. Raises OSError, also where its file system does not answer."""
    return io_deadline.ask(partial(_program_head, directory))


def _program_head(directory: ProcDir) -> bytes:
    found = directory.open("exe", os.O_PATH)
    try:
        io_deadline.at(found, is_file=True)
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 64)
        finally:
            os.close(fd)
    finally:
        os.close(found)


def program_arch(directory: ProcDir) -> Arch:
    """What the program file of a process is made for; where that cannot be seen, what this machine is."""
    native = native_arches(os.uname().machine)
    try:
        found = elf_arch(program_head(directory))
    except OSError:
        return native[0]
    known = find_arch(*found) if found else None
    return known if known in native else native[0]


def parse_status(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in os.fsdecode(text).split("\n"))
    return {key: value.strip() for key, colon, value in pairs if colon}


def sched(tid: int) -> bytes:
    """/proc/TID/sched. Raises OSError."""
    with open(f"/proc/{tid}/sched", "rb", 0) as file:
        return file.read(_SCHED_SIZE)


def thread_status(tid: int) -> dict[str, str]:
    """/proc/TID/status of a thread. Raises ProcessLookupError."""
    try:
        with open(f"/proc/{tid}/status", "rb") as file:
            return parse_status(file.read())
    except FileNotFoundError:
        raise ProcessLookupError(tid) from None


def tasks(pid: int) -> list[int]:
    """Tids of a process, ascending. Raises ProcessLookupError."""
    try:
        return sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "tracing stop",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}


def state(pid: int, tid: int) -> str:
    """In words, as in /proc/TID/status; "gone" if the thread has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            letter = parse_stat(file.read()).state
    except OSError:
        return "gone"
    return _STATES.get(letter, letter)


def waited_s(pid: int, tid: int) -> float:
    """For how long it was able to run and had no processor; 0 for one that is gone, or if the kernel does not say."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def waits(pid: int) -> dict[int, float]:
    """Return for each thread how long it was able to run and had no processor, in seconds."""
    try:
        return {tid: waited_s(pid, tid) for tid in tasks(pid)}
    except OSError:
        return {}


def name(pid: int) -> str:
    """The name of a process (comm), "?" if it is gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return "?"


def exe(pid: int) -> str:
    """Path of the program, as the process names it; "?" where it is gone or not ours to see."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return "?"


def arguments(pid: int) -> list[str]:
    """Return the command line of a process, without what is beyond _MOST_ARGUMENTS; empty if it is gone or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(_MOST_ARGUMENTS)
    except OSError:
        return []
    found = os.fsdecode(text.removesuffix(b"\0")).split("\0") if text else []
    return found[:-1] if len(text) == _MOST_ARGUMENTS else found


def command_line(pid: int) -> str:
    """Return the arguments of a process with blanks between them, "" if it is gone or has none."""
    return " ".join(arguments(pid))


def arch(pid: int) -> Arch:
    """Of the program of a process. Raises ProcessLookupError."""
    directory = ProcDir(pid)
    try:
        return program_arch(directory)
    finally:
        directory.close()


def read_memory(pid: int) -> ReadMemory:
    """Reads of whatever image the process has at that moment; b"" once it is gone."""
    return memory_reader(pid, lambda: True)


def address_space(pid: int, space_id: int, generation: int) -> AddressSpace:
    """The modules of a process as they are now. Raises ProcessLookupError, PermissionError."""
    directory = ProcDir(pid)
    try:
        mappings = parse_maps(directory.maps())
    finally:
        directory.close()
    return AddressSpace(space_id, pid, generation, mappings, read_memory(pid), f"/proc/{pid}/root")


def all_pids() -> list[int]:
    """Every process that this pid namespace shows."""
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def pids_by_entry() -> dict[int, int]:
    """The same, each with the number of its folder's inode: a later process of that pid has another one."""
    with os.scandir("/proc") as entries:
        return {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}


def census() -> bytes:
    """Other bytes once a process or thread has begun or ended, but for one that is given the number of the last one in
    its place (as CRIU does); b"" where the kernel does not say: lxcfs and gVisor have a file of that name, too.
    """
    try:
        with open("/proc/loadavg", "rb") as file:
            is_the_kernels = os.fstat(file.fileno()).st_dev == os.stat(_PROC).st_dev
            return parse_census(file.read()) if is_the_kernels else b""
    except OSError:
        return b""


def parse_census(load: bytes) -> bytes:
    """load: of /proc/loadavg."""
    found = _CENSUS.fullmatch(load)
    return b" ".join(found.groups()) if found else b""


def started(tid: int) -> int | None:
    """When a thread or process began, in clock ticks since the machine did; None if it has ended.

    The file of the thread, not of the process: there the kernel adds up the times of all threads, at each read.
    """
    try:
        with open(f"/proc/{tid}/task/{tid}/stat", "rb") as file:
            stat = parse_stat(file.read())
    except (OSError, FormatError):
        return None
    return None if stat.is_zombie else stat.start


def began_ns(text: bytes) -> int:
    """When a process began, in nanoseconds of the wall clock as it is set now; 0 if it has ended. text: its stat."""
    try:
        stat = parse_stat(text)
    except FormatError:
        return 0
    if stat.is_zombie:
        return 0
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted_ns + stat.start * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
