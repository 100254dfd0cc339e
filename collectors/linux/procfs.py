"""Information about processes and stopped tasks in /proc.

Paths in /proc/PID/maps are hostile input. The kernel alone controls all other contents. Reads use a
descriptor of /proc/PID, so that a reused pid is never mistaken for the process.
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
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import MAX_MAPPINGS, AddressSpace, Mapping, ReadMemory
from pyprof.model.arch import Arch, find_arch, native_arches
from pyprof.objfile import io_deadline

_MAX_INODE = (1 << 64) - 1
_MAPS_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-][sp]) ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20}) *(.*)",
    re.DOTALL,
)
_PROC = "/proc"
_CENSUS = re.compile(rb"\S+ \S+ \S+ \d+/(\d+) ([1-9]\d*)\s*")
"""Pattern of the number of threads and the last assigned pid in /proc/loadavg."""
_RUNNABLE = re.compile(rb"\S+ \S+ \S+ (\d{1,9})/")
"""Pattern of the number of tasks that run or wait for a processor in /proc/loadavg."""
_CHUNK = 1 << 20
_MIN_LINE = 40
"""Number of bytes of the shortest line of /proc/PID/maps."""
_LINE_WITH_PERMISSIONS = re.compile(rb"^(\S+ ([r-][w-][x-][sp]) .*)$", re.MULTILINE)
_NEIGHBOURS = 8
"""Number of lines of /proc/PID/maps before and after an executable mapping that may belong to its module."""
_SCHED_SIZE = 4096
_MAX_ARGUMENTS = 1 << 16
"""Maximum number of bytes of a command line that are read. The command lines of compilers name hundreds of folders."""


def bound_maps(text: bytes) -> bytes:
    """Return a text of /proc/PID/maps with at most MAX_MAPPINGS lines.

    The work for a process grows with its mappings. Without a bound an unprivileged process takes several seconds of
    processor time, which the recording of other processes lacks. A longer text loses the lines that are neither near an
    executable mapping nor writable, as stacks are. If there are still too many, it loses those in the middle. The
    program is at the beginning of the address space, its first libraries and its stack at the end.
    """
    if len(text) <= MAX_MAPPINGS * _MIN_LINE:
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
    r"""Parse the lines of /proc/PID/maps, ascending (proc(5)), to at most MAX_MAPPINGS mappings; see bound_maps().

    Line breaks in names are written as \012, other bytes as they are (not UTF-8: surrogateescape). A line that overlaps
    the previous one is dropped, because the kernel writes the file page by page while the process continues to map.

    Raises:
        FormatError: A line is not valid.
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
            if end < start or inode > _MAX_INODE:
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
    """The fields of /proc/PID/stat that pyprof uses.

    Attributes:
        comm: The process's name.
        state: Letter of its state.
        ppid: Pid of the parent process.
        flags: PF_* (linux/sched.h).
        worked: Processor time in clock ticks.
        start: Start in clock ticks since boot.
        stack: Start of the main thread's stack, 0 without permission to read it.
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
    """Parse a line of /proc/PID/stat; the name in it may contain blanks and brackets.

    Raises:
        FormatError: The line is not valid.
    """
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


def parse_state(stat: bytes) -> str:
    """Return the state letter in a line of /proc/PID/stat. It takes a fifth of the time of parse_stat()."""
    at = stat.rfind(b") ") + 2
    return stat[at : at + 1].decode("ascii", "replace")


class ProcDir:
    """The directory /proc/PID of a process as an open descriptor. Every method raises ProcessLookupError after the
    process has ended.
    """

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
        """Return the state letter in /proc/PID/stat of the process."""
        return parse_state(self.read("stat"))

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status as {key: text after the colon}."""
        return parse_status(self.read("status"))

    def maps(self) -> bytes:
        return self.read("maps")

    def comm(self) -> str:
        return os.fsdecode(self.read("comm").rstrip(b"\n"))

    def thread_count(self) -> int:
        """Return the number of threads of the process with one system call (the link count of the task directory)."""
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
        """Return the pids of the children of all threads of the process. The result is empty if the kernel
        has no CONFIG_PROC_CHILDREN.
        """
        found: list[int] = []
        for tid in self.threads():
            try:
                found += [int(word) for word in self.read(f"task/{tid}/children").split()]
            except ProcessLookupError:
                continue
        return found


def parse_elf_arch(head: bytes) -> tuple[int, int, str] | None:
    """Return (e_machine, class 32 or 64, byte order) from an ELF file's first bytes, or None for other files."""
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order: Literal["little", "big"] = "little" if head[5] == 1 else "big"
    return int.from_bytes(head[18:20], order), 32 * head[4], order


def read_program_head(directory: ProcDir) -> bytes:
    """Return the first bytes of a process's program file.

    Raises:
        OSError: The file cannot be read, or its file system does not answer.
    """
    return io_deadline.run_with_timeout(partial(_program_head, directory))


def _program_head(directory: ProcDir) -> bytes:
    found = directory.open("exe", os.O_PATH)
    try:
        io_deadline.use_mount(found, is_file=True)
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 64)
        finally:
            os.close(fd)
    finally:
        os.close(found)


def parse_program_arch(directory: ProcDir) -> Arch:
    """Return the architecture of a process's program file, or that of this machine if the file cannot be read."""
    native = native_arches(os.uname().machine)
    try:
        found = parse_elf_arch(read_program_head(directory))
    except OSError:
        return native[0]
    known = find_arch(*found) if found else None
    return known if known in native else native[0]


def parse_status(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in os.fsdecode(text).split("\n"))
    return {key: value.strip() for key, colon, value in pairs if colon}


def read_sched(tid: int) -> bytes:
    """Return the contents of /proc/TID/sched, the scheduler's statistics of a thread.

    Raises:
        OSError: The file cannot be read.
    """
    with open(f"/proc/{tid}/sched", "rb", 0) as file:
        return file.read(_SCHED_SIZE)


def read_thread_status(tid: int) -> dict[str, str]:
    """Return the contents of /proc/TID/status of a thread.

    Raises:
        ProcessLookupError: The thread has ended.
    """
    try:
        with open(f"/proc/{tid}/status", "rb") as file:
            return parse_status(file.read())
    except FileNotFoundError:
        raise ProcessLookupError(tid) from None


def list_tasks(pid: int) -> list[int]:
    """Return the tids of a process, ascending.

    Raises:
        ProcessLookupError: The process has ended.
    """
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


def read_state(pid: int, tid: int) -> str:
    """Return the state of a thread in words, as in /proc/TID/status, or "gone" if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            letter = parse_stat(file.read()).state
    except OSError:
        return "gone"
    return _STATES.get(letter, letter)


def read_waited_s(pid: int, tid: int, with_runs: bool = False) -> float:
    """Return how long a thread has waited for a processor while it was runnable, in seconds. With `with_runs`
    its time on processors is included. The result is 0 if the thread has ended or the kernel has no such
    data.
    """
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            ran, waited = file.read().split()[:2]
            return (int(waited) + int(ran) * with_runs) / 1e9
    except OSError:
        return 0.0


def read_run_ns(pid: int, tid: int) -> int:
    """Return a thread's processor time in nanoseconds, as of its last timer tick or context switch. The
    result is 0 if the thread has ended or the kernel has no such data.
    """
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except OSError:
        return 0


def read_waits(pid: int, with_runs: bool = False) -> dict[int, float]:
    """Return the time in seconds that each thread of a process has waited for a processor while it was
    runnable, by tid.
    """
    try:
        return {tid: read_waited_s(pid, tid, with_runs) for tid in list_tasks(pid)}
    except OSError:
        return {}


def read_name(pid: int) -> str:
    """Return the name of a process (comm), or "?" if it has ended."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return "?"


def read_thread_name(pid: int, tid: int) -> str:
    """Return the name of a thread (comm), or "" if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/comm", "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return ""


def read_exe(pid: int) -> str:
    """Return the path of a process's program as the process sees it, or "?" if the process has ended or may
    not be read.
    """
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return "?"


def read_arguments(pid: int) -> list[str]:
    """Return the arguments of a process within _MAX_ARGUMENTS bytes; empty if it has ended or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(_MAX_ARGUMENTS)
    except OSError:
        return []
    found = os.fsdecode(text.removesuffix(b"\0")).split("\0") if text else []
    return found[:-1] if len(text) == _MAX_ARGUMENTS else found


def read_command_line(pid: int) -> str:
    """Return the arguments of a process, separated by blanks; "" if it has ended or has none."""
    return " ".join(read_arguments(pid))


def read_arch(pid: int) -> Arch:
    """Return the architecture of the program that a process runs.

    Raises:
        ProcessLookupError: The process has ended.
    """
    directory = ProcDir(pid)
    try:
        return parse_program_arch(directory)
    finally:
        directory.close()


def make_memory_reader(pid: int) -> ReadMemory:
    """Return a function that reads the memory of the process's current image, or b"" once it has ended."""
    return memory_reader(pid, lambda: True)


def read_address_space(pid: int, space_id: int, generation: int) -> AddressSpace:
    """Return the address space of a process, with its current modules.

    Raises:
        ProcessLookupError: The process has ended.
        PermissionError: The process may not be read.
    """
    directory = ProcDir(pid)
    try:
        mappings = parse_maps(directory.maps())
    finally:
        directory.close()
    return AddressSpace(space_id, pid, generation, mappings, make_memory_reader(pid), f"/proc/{pid}/root")


def list_pids() -> list[int]:
    """Return the pid of every process that this pid namespace shows."""
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def list_pids_with_inodes() -> dict[int, int]:
    """Return the pid of every process with the inode of its /proc directory. A later process with the same pid has
    another inode.
    """
    with os.scandir("/proc") as entries:
        return {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}


def read_census() -> bytes:
    """Return the thread count and the last pid of /proc/loadavg, which change when a task starts or ends.

    They do not change if a new task gets the pid of the last one (as by CRIU). The result is b"" if another file system
    (lxcfs, gVisor) provides that file.
    """
    try:
        with open("/proc/loadavg", "rb") as file:
            is_the_kernels = os.fstat(file.fileno()).st_dev == os.stat(_PROC).st_dev
            return parse_census(file.read()) if is_the_kernels else b""
    except OSError:
        return b""


def parse_census(load: bytes) -> bytes:
    """Return the number of threads and the last pid from the text of /proc/loadavg, or b""."""
    found = _CENSUS.fullmatch(load)
    return b" ".join(found.groups()) if found else b""


def read_cpu_contention() -> float:
    """Return the number of tasks that run or wait for a processor, divided by the number of processors.

    The result is 0 if /proc/loadavg is not readable.
    """
    try:
        with open("/proc/loadavg", "rb") as file:
            found = _RUNNABLE.match(file.read())
    except OSError:
        return 0.0
    return int(found[1]) / (os.cpu_count() or 1) if found else 0.0


def read_start_ticks(tid: int) -> int | None:
    """Return the start of a thread or process in clock ticks since boot, or None if it has ended.

    It reads the thread's file. For the process's file the kernel adds up the times of all threads at each read.
    """
    try:
        with open(f"/proc/{tid}/task/{tid}/stat", "rb") as file:
            stat = parse_stat(file.read())
    except (OSError, FormatError):
        return None
    return None if stat.is_zombie else stat.start


def compute_start_ns(text: bytes) -> int:
    """Return the start of a process in nanoseconds of the wall clock as it is set now, or 0 if it has ended.

    Args:
        text: Contents of the process's /proc/PID/stat.
    """
    try:
        stat = parse_stat(text)
    except FormatError:
        return 0
    if stat.is_zombie:
        return 0
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted_ns + stat.start * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


ENDED_STATES = "ZX"
_SIZE = 1024


def read_stop_state(tid: int) -> str:
    """Return the letter of the state in /proc/TID/stat, or X if there is no such thread."""
    try:
        fd = os.open(f"/proc/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_state(os.read(fd, _SIZE))
        finally:
            os.close(fd)
    except OSError:
        return "X"


front_pid = 0
"""Pid of the parent that passes signals on to this process (cli/front_process.py), 0 if there is none."""


def own_pids() -> set[int]:
    """Return the pids of this process and of its front process. They are never recorded with other processes."""
    return {os.getpid(), front_pid or os.getpid()}


def is_own_child(tid: int) -> bool:
    try:
        status = read_thread_status(tid)
    except OSError:
        return False
    return status.get("PPid") == str(os.getpid()) and status.get("Tgid") == str(tid)


def has_pending_signal(tid: int) -> bool:
    """Return True if a signal is pending that the thread does not block, or if that cannot be read."""
    try:
        status = read_thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~int(status["SigBlk"], 16))
    except (OSError, KeyError, ValueError):
        return True


def has_pending_handler(tid: int, signum: int) -> bool:
    """Return True if a signal handler of the thread is about to run, False if it is not or if that is unknown.

    Args:
        tid: The thread.
        signum: Signal with which it has stopped, 0 for none.
    """
    try:
        status = read_thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        due = pending & ~int(status["SigBlk"], 16) | (1 << signum >> 1)
        return bool(due & int(status["SigCgt"], 16))
    except (OSError, KeyError, ValueError):
        return False
