"""System calls that a ptrace stop interrupts: which calls continue unchanged, which ones return early, and
how the effect is undone or counted.

Sources for calls that continue: signal(7), "Interruption of system calls and library functions by stop signals", and
the kernel's return codes. The kernel restarts ERESTARTSYS, ERESTARTNOHAND, ERESTARTNOINTR and ERESTART_RESTARTBLOCK if
no signal handler runs, but not EINTR. Numbers of calls: Kernel.syscalls.

A call that a stop cuts short returns less than was requested, because it returns what is done so far. A call that waits
or copies for long checks from time to time whether a signal is pending, and the kernel requests a stop by the same
flag. Sources: signal(7), and the kernel's code: fs/pipe.c, fs/splice.c, net/core/stream.c, net/unix/af_unix.c,
net/ipv4/tcp.c, net/socket.c, drivers/tty/n_tty.c, drivers/char/mem.c, drivers/char/random.c, fs/aio.c.

Files on disks are not affected: their reads and writes end early only when the thread is killed.

prepare_release() is called while the thread is stopped. It reads what is visible only during the stop, and
raises no exception.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Sequence

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.procfs import has_pending_handler, has_pending_signal
from pyprof.collectors.linux.stopped_registers import EINTR, Regset
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.problem_counters import Diagnostics

_READS = frozenset({"read", "readv"})

SURVIVES = frozenset({
    "poll", "ppoll", "ppoll_time64", "select", "_newselect", "pselect6", "pselect6_time64", "pause",
    "nanosleep", "clock_nanosleep", "clock_nanosleep_time64", "wait4", "waitpid", "waitid", "msgsnd", "msgrcv", "flock",
    "sigsuspend", "rt_sigsuspend", "mq_timedreceive", "mq_timedreceive_time64",
    "restart_syscall",  # was already restarted once
})  # fmt: skip
"""System calls that the kernel restarts after a stop, whatever their arguments.

Writes are missing on purpose: if they are cut short, they return the number of bytes written so far.
"""

_FUTEX_SURVIVES = frozenset({0, 6, 9})  # WAIT, LOCK_PI, WAIT_BITSET
_READ_SURVIVES = ("pipe:", "/dev/pts/", "/dev/tty", "anon_inode:[eventfd]", "anon_inode:[timerfd]",
                  "anon_inode:[signalfd]")  # fmt: skip
_IPC_SURVIVES = frozenset({11, 12})  # MSGSND, MSGRCV

_RESTARTABLE = frozenset({
    "read", "readv", "epoll_wait", "accept", "accept4", "recv", "recvfrom", "recvmsg", "semop", "semtimedop",
    "semtimedop_time64", "rt_sigtimedwait", "rt_sigtimedwait_time64", "io_getevents",
})  # fmt: skip
"""System calls that return EINTR only before they have any effect, so that running them again is the same call."""

_SOCKETCALL_RESTARTABLE = frozenset({5, 10, 12, 17, 18})  # ACCEPT, RECV, RECVFROM, RECVMSG, ACCEPT4 (linux/net.h)
_IPC_RESTARTABLE = frozenset({1, 4})  # SEMOP, SEMTIMEDOP (linux/ipc.h)

_RESTARTABLE_WITHOUT_MASK = {"epoll_pwait": 4, "epoll_pwait2": 4}
"""System call -> index of its argument with the signal mask, which must be NULL for a restart.

With a mask, a signal and the end of the wait belong together, and a program that passes one expects EINTR.
"""


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """The system call in which a thread is blocked, from /proc/TID/syscall. `number` is -1 if the thread is
    blocked outside of system calls.
    """

    number: int
    args: tuple[int, ...]
    sp: int
    pc: int


def parse_syscall(line: bytes) -> BlockedCall | None:
    """Parse a line of /proc/TID/syscall. Return None for "running". The resulting sp is 0 if the thread has
    ended.

    Raises:
        FormatError: The line is not valid.
    """
    words = line.split()
    if len(words) < 3:
        return None
    try:
        number, sp, pc = int(words[0]), int(words[-2], 16), int(words[-1], 16)
        return BlockedCall(number, tuple(int(word, 16) for word in words[1:-2]), sp, pc)
    except ValueError:
        raise FormatError("syscall", 0, "not a line of /proc/PID/task/TID/syscall") from None


def can_survive_stop(call: BlockedCall, pid: int, arch: Arch) -> bool:
    """Return True if a blocked call surely continues after a ptrace stop as if nothing had happened."""
    if call.number < 0:
        return True
    name, args = arch.kernel.call_names.get(call.number, ""), call.args
    if name in SURVIVES:
        return True
    if name in ("futex", "futex_time64"):
        return len(args) > 1 and args[1] & 0x7F in _FUTEX_SURVIVES
    if name == "ipc":
        return len(args) > 0 and args[0] & 0xFFFF in _IPC_SURVIVES
    if name in _READS and args:
        try:
            return os.readlink(f"/proc/{pid}/fd/{args[0]}").startswith(_READ_SURVIVES)
        except OSError:
            return False
    return False


def can_restart(arch: Arch, number: int, args: Sequence[int]) -> bool:
    """Return True if a system call that failed with EINTR because of a stop may be run again.

    Args:
        arch: Architecture of the call.
        number: Number of the call.
        args: The six arguments of the call.
    """
    name = arch.kernel.call_names.get(number, "")
    if name in _RESTARTABLE:
        return True
    if name == "socketcall":
        return args[0] in _SOCKETCALL_RESTARTABLE
    if name == "ipc":
        return args[0] & 0xFFFF in _IPC_RESTARTABLE
    mask = _RESTARTABLE_WITHOUT_MASK.get(name)
    return mask is not None and args[mask] == 0


Read = Callable[[int, int], bytes]
"""The type of a function that reads `size` bytes of a stopped thread's memory at `avma`. It returns b"" if
they are not readable.
"""

_ASKED = {
    "write": 2, "send": 2, "sendto": 2, "recv": 2, "recvfrom": 2, "read": 2, "sendfile": 3, "sendfile64": 3,
    "splice": 4, "copy_file_range": 4, "getrandom": 1, "io_getevents": 1,
}  # fmt: skip
"""System call -> index of the argument that states the requested amount, in the unit of the call's result."""
_VECTORS = frozenset({"writev", "readv"})
_MESSAGES = frozenset({"sendmsg", "recvmsg"})
_MANY_MESSAGES = frozenset({"sendmmsg", "recvmmsg", "recvmmsg_time64"})
_MAX_BYTES, _MAX_PIECES = 0x7FFF_F000, 1024
"""The kernel's limits MAX_RW_COUNT (bytes) and UIO_MAXIOV (pieces): one call never transfers more, whatever
is requested.
"""

_FLAGS = {"send": 3, "sendto": 3, "sendmsg": 2, "sendmmsg": 3, "recv": 3, "recvfrom": 3, "recvmsg": 2, "recvmmsg": 3,
          "recvmmsg_time64": 3, "splice": 5}  # fmt: skip
_INTO = {"write": 0, "writev": 0, "send": 0, "sendto": 0, "sendmsg": 0, "sendmmsg": 0, "sendfile": 0, "sendfile64": 0,
         "splice": 2, "copy_file_range": 2}  # fmt: skip
"""System call -> index of its argument with the descriptor that receives the data."""
_FROM = {"read": 0, "readv": 0, "recv": 0, "recvfrom": 0, "recvmsg": 0, "recvmmsg": 0, "recvmmsg_time64": 0,
         "sendfile": 1, "sendfile64": 1, "splice": 0, "copy_file_range": 0}  # fmt: skip
"""System call -> index of its argument with the descriptor that supplies the data."""
_COPIES = frozenset({"sendfile", "sendfile64", "splice", "copy_file_range"})
_WAIT_FOR_ALL = frozenset({"recv", "recvfrom", "recvmsg"})
_PLACE = {"sendfile": (2, 4), "sendfile64": (2, 8), "copy_file_range": (1, 8)}
"""System call -> (index of its argument with the address of the offset in the source file, size of that
offset in bytes in 32-bit programs).
"""
_SOCKETCALLS = {9: ("send", 4), 10: ("recv", 4), 11: ("sendto", 6), 12: ("recvfrom", 6), 16: ("sendmsg", 3),
                17: ("recvmsg", 3), 19: ("recvmmsg", 5), 20: ("sendmmsg", 4)}  # fmt: skip
"""Number of a call of socketcall(2) (linux/net.h) -> name of the call, and its number of arguments in memory."""

_MSG_DONTWAIT, _MSG_WAITALL, _MSG_WAITFORONE, _SPLICE_F_NONBLOCK = 0x40, 0x100, 0x10000, 2
_ENDLESS = frozenset({os.makedev(1, 5), os.makedev(1, 7), os.makedev(1, 8), os.makedev(1, 9)})
"""Device numbers of files that never end: /dev/zero, full, random, urandom."""
_INT = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class ShortCall:
    """A system call that a stop may have interrupted, and that has returned less than was requested.

    Attributes:
        name: Name of the call.
        args: Its arguments.
        at: Offset in the source file, -1 if it is unknown or there is none.
    """

    name: str
    args: tuple[int, ...]
    at: int = -1


def parse_short_call(
    arch: Arch, tid: int, number: int, args: tuple[int, ...], result: int, read: Read
) -> ShortCall | None:
    """Return the system call that a stopped thread has just finished, if it transferred less than was
    requested. Return None if it is complete or cannot be cut short.

    This function raises no exception.

    Args:
        arch: Architecture of the thread.
        tid: The thread.
        number: Number of the call.
        args: Its arguments.
        result: Its result, which is not an error.
        read: Function that reads memory of the thread.
    """
    name = arch.kernel.call_names.get(number, "")
    if name == "socketcall" and args[0] in _SOCKETCALLS:
        name, count = _SOCKETCALLS[args[0]]
        args = (*_words(arch, read(args[1], count * arch.word)), 0, 0, 0, 0, 0, 0)[:6]
    if name in _ASKED:
        short = result < min(args[_ASKED[name]], _MAX_BYTES)
    elif name in _VECTORS:
        short = result < _total(arch, args[1], args[2], read)
    elif name in _MESSAGES:
        short = result < _message(arch, args[1], read)
    elif name in _MANY_MESSAGES:
        fewer = result < min(args[2] & _INT, _MAX_PIECES)
        short = fewer or (name == "sendmmsg" and _last_is_short(arch, args[1], result, read))
    else:
        return None
    return ShortCall(name, args, _place(arch, tid, name, args, read)) if short else None


def can_end_by_itself(call: ShortCall, tid: int) -> bool:
    """Return True if a system call returned less than was requested for another reason than a stop, such as
    the end of a file. Return False if that is unknown. The thread need not be stopped any more.
    """
    name = call.name
    if not _waits_for_all(name, call.args[_FLAGS[name]] if name in _FLAGS else 0):
        return True
    into = call.args[_INTO[name]] & _INT if name in _INTO else -1
    given = call.args[_FROM[name]] & _INT if name in _FROM else -1
    if into >= 0 and (_does_not_wait(tid, into) or _kind(tid, into) in _ends_of(name)):
        return True
    if name == "splice":
        return _kind(tid, given) not in (stat.S_IFIFO, 0)
    if name in _READS:
        found = _status(tid, given)
        return found is None or found.st_rdev not in _ENDLESS
    if name in _COPIES:
        found = _status(tid, given)
        return found is not None and stat.S_ISREG(found.st_mode) and 0 <= found.st_size <= call.at
    return given >= 0 and _does_not_wait(tid, given)


def _waits_for_all(name: str, flags: int) -> bool:
    if name == "splice":
        return not flags & _SPLICE_F_NONBLOCK
    if name in _WAIT_FOR_ALL and not flags & _MSG_WAITALL:
        return False
    return not flags & (_MSG_DONTWAIT | _MSG_WAITFORONE)


def _ends_of(name: str) -> tuple[int, ...]:
    """Return the types of files (stat.S_IF...) to which a system call may write less than was requested
    without a stop, because the file has no room for more.

    A copy does not wait for more room in a pipe. A write to a disk does not wait in a way that a stop would end.
    """
    return (stat.S_IFIFO,) if name in _COPIES else (stat.S_IFREG, stat.S_IFBLK)


def _words(arch: Arch, data: bytes) -> Sequence[int]:
    word = arch.elf_class // 8
    return memoryview(data[: len(data) // word * word]).cast("Q" if word == 8 else "I")


def _total(arch: Arch, avma: int, count: int, read: Read) -> int:
    """Return the number of bytes that an array of struct iovec requests, or a huge number if the array
    cannot be read.
    """
    lengths = _words(arch, read(avma, min(count, _MAX_PIECES) * 2 * arch.elf_class // 8))[1::2]
    return min(sum(lengths), _MAX_BYTES) if len(lengths) == count else 1 << 64


def _message(arch: Arch, avma: int, read: Read) -> int:
    """Return the number of bytes that a struct msghdr requests to transfer."""
    header = _words(arch, read(avma, 4 * arch.elf_class // 8))
    return _total(arch, header[2], header[3], read) if len(header) == 4 else 1 << 64


def _last_is_short(arch: Arch, avma: int, count: int, read: Read) -> bool:
    """Return True if the last of `count` struct mmsghdr is short: a struct msghdr of seven words, and the bytes
    sent.
    """
    if count <= 0:
        return False
    word = arch.elf_class // 8
    last = avma + (count - 1) * 8 * word
    return int.from_bytes(read(last + 7 * word, 4), "little") < _message(arch, last, read)


def _place(arch: Arch, tid: int, name: str, args: tuple[int, ...], read: Read) -> int:
    if name not in _PLACE:
        return -1
    slot, size = _PLACE[name]
    if args[slot]:
        data = read(args[slot], 8 if arch.word == 8 else size)
        return int.from_bytes(data, "little") if data else -1
    return _fdinfo(tid, args[_FROM[name]] & _INT, b"pos:", 10)


def _fdinfo(tid: int, fd: int, name: bytes, base: int) -> int:
    """Return a number from /proc/TID/fdinfo/FD, or -1 if it is not there."""
    try:
        with open(f"/proc/{tid}/fdinfo/{fd}", "rb", buffering=0) as file:
            words = file.read(4096).split()
            return int(words[words.index(name) + 1], base)
    except (OSError, ValueError, IndexError):
        return -1


def _status(tid: int, fd: int) -> os.stat_result | None:
    try:
        return os.stat(f"/proc/{tid}/fd/{fd}")
    except OSError:
        return None


def _kind(tid: int, fd: int) -> int:
    """Return the type of an open file of a thread (stat.S_IF...), or 0 if it is unknown."""
    found = _status(tid, fd)
    return stat.S_IFMT(found.st_mode) if found else 0


def _does_not_wait(tid: int, fd: int) -> bool:
    flags = _fdinfo(tid, fd, b"flags:", 8)
    return flags >= 0 and bool(flags & os.O_NONBLOCK)


RESTARTED = "system_call_restarted"
INTERRUPTED = "system_call_interrupted"

_MEMORY = 32 << 10
"""Size in bytes of the buffer for a system call's arguments: two arrays of the maximum number of struct iovec."""
_INTERRUPT_STOP = signal.SIGTRAP | libc.PTRACE_EVENT_STOP << 8


class InterruptedCalls:
    """The repair of system calls that ptrace stops have interrupted. It restarts a call where possible, and
    otherwise finds out if the stop has cut the call short. It serves one stopped thread at a time.
    """

    def __init__(self, ptrace: libc.PtraceCalls, diagnostics: Diagnostics) -> None:
        self._ptrace = ptrace
        self._diagnostics = diagnostics
        self._memory = libc.Arena(_MEMORY)
        self._tid = 0

    def prepare_release(self, tid: int, status: int, regset: Regset) -> ShortCall | None:
        """Undo the interruption of a system call if possible, before the stopped thread is released.

        Args:
            tid: The thread.
            status: Wait status of the stop.
            regset: The thread's registers.

        Returns:
            A system call that the stop may have cut short, to be passed to check_release(), or None.
        """
        self._tid = tid
        if regset.interrupted:
            self._restart(status, regset)
            return None
        number, result = regset.call, regset.result
        if number < 0 or result < 0:
            return None
        found = parse_short_call(regset.arch, tid, number, regset.args, result, self.read)
        if found is None or (status >> 8 and status != _INTERRUPT_STOP):  # a SIGSTOP would also have cut it
            return None
        if regset.restarts(self.read) or has_pending_handler(tid, 0 if status >> 8 else status):
            return None
        self._mark(regset)
        return found

    def _mark(self, regset: Regset) -> None:
        """Clear the number of the system call in the stopped thread's registers, so that the next stop does not find
        the same interrupted call again.

        A thread that got no processor between two stops is still at the same place. The kernel needs the
        number only for a restart, and this call already has a result. So the profiler may be killed before or
        after this change.
        """
        number = regset.leave_call()
        self._ptrace.write_registers(self._tid, regset.arch.kernel.regset_size)
        regset.put_call(number)

    def check_release(self, tid: int, found: ShortCall | None) -> bool:
        """Return True if a stop has cut the system call of a released thread short, and count the case."""
        if found is None or can_end_by_itself(found, tid):
            return False
        self._diagnostics.count(f"system_call_cut_short:{found.name}")
        return True

    def _restart(self, status: int, regset: Regset) -> None:
        """Restart a system call that failed with EINTR because of the stop. The thread fell asleep in it
        after the profiler saw the thread run, and before the stop.

        This is done only if the effect is as if there had been no stop. The call must return EINTR before it has any
        effect. No signal may be about to be handled, else the EINTR is the signal's. The bytes before pc must be the
        syscall instruction. A signal that arrives between the last check and the DETACH is handled as if it had arrived
        just before the call. If the first argument and the result share a register (ARM, AArch64), the kernel does not
        restore the argument. Then nothing can be undone; the register set does not show the call there.
        """
        arch, number, tid = regset.arch, regset.call, self._tid
        if number < 0 or status != _INTERRUPT_STOP or has_pending_signal(tid):
            return
        pc, code = regset.pc, arch.kernel.syscall_codes[0]
        done = can_restart(arch, number, regset.args) and self.read(pc - len(code), len(code)) == code
        if done:
            regset.begin_again(number, len(code))
            done = self._ptrace.write_registers(tid, arch.kernel.regset_size) == 0
            regset.put_back(-EINTR & arch.mask, pc)
            if done and has_pending_signal(tid):
                self._ptrace.write_registers(tid, arch.kernel.regset_size)
                return
        self._diagnostics.count(RESTARTED if done else INTERRUPTED)

    def read(self, avma: int, size: int) -> bytes:
        """Read memory of the stopped thread. Return b"" if it is not readable."""
        if not 0 < size <= self._memory.size or not 0 <= avma < 1 << 64:
            return b""
        got = self._ptrace.read_memory(self._tid, avma, size, self._memory.address)
        return bytes(self._memory.data[:size]) if got == size else b""
