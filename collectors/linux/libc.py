"""System calls that Python's standard library lacks, by ctypes. Only this module and
native/sampling_loop_bindings.py use ctypes.

Calls between the stop of a thread and its PTRACE_DETACH use PyDLL, which keeps the GIL, so that no other
thread of the profiler can delay the resume. After read_without_gil() other threads may run while memory is
read. The calls return -errno instead of raising, and write into buffers that were allocated before.

Constants: linux/ptrace.h, linux/elf.h, process_vm_readv(2). python-ptrace has a part of them; importing it takes 10 ms.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import chain, takewhile

PTRACE_DETACH = 17
PTRACE_GETSIGINFO = 0x4202
PTRACE_GETREGSET = 0x4204
PTRACE_SETREGSET = 0x4205
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
PTRACE_EVENT_STOP = 128
P_PID, WSTOPPED, WNOHANG, WALL = 1, 2, 1, 0x40000000

REGSET_ROOM = 1024
"""Size in bytes of a register buffer that is larger than any user_regs_struct."""

NT_PRSTATUS, NT_ARM_PAC_MASK = 1, 0x406

_SI_SIGNO, _SI_CODE, _SI_STATUS = 0, 2, 6 if ctypes.sizeof(ctypes.c_void_p) == 8 else 5
"""Indices of si_signo, si_code and si_status among the int32 words of siginfo_t for SIGCHLD: si_signo,
si_errno, si_code, padding (64-bit), si_pid, si_uid, si_status.
"""

_libc = ctypes.PyDLL(None, use_errno=True)
_ulong = ctypes.c_ulong

_ptrace = _libc.ptrace
_ptrace.argtypes = (_ulong, _ulong, _ulong, _ulong)
_ptrace.restype = ctypes.c_long
_waitid = _libc.waitid
_waitid.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int)
_readv = _libc.process_vm_readv
_patient_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
for _each in (_readv, _patient_readv):
    _each.argtypes = (ctypes.c_int, ctypes.c_void_p, _ulong, ctypes.c_void_p, _ulong, _ulong)
    _each.restype = ctypes.c_ssize_t
_sigtimedwait = _libc.sigtimedwait
_sigtimedwait.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_sigmask = _libc.pthread_sigmask
_sigmask.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_setscheduler = _libc.sched_setscheduler
_setscheduler.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_get_errno = ctypes.get_errno


def read_without_gil() -> None:
    """Make all later reads of a target's memory release the GIL.

    A page may never arrive (userfaultfd, a file system that does not answer). Use this only if no other thread has
    work, because it would delay the resume of a stopped thread.
    """
    global _readv
    _readv = _patient_readv


def can_read_without_gil() -> bool:
    return _readv is _patient_readv


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


def seize(tid: int) -> int:
    """Become the tracer of a thread without stopping it. Return 0 or -errno (EPERM: not permitted, or already
    traced).
    """
    return 0 if _ptrace(PTRACE_SEIZE, tid, 0, 0) == 0 else -_get_errno()


def interrupt(tid: int) -> int:
    """Request the stop of a seized thread. Return 0 or -errno."""
    return 0 if _ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 else -_get_errno()


def detach(tid: int, signum: int = 0) -> int:
    """Release a stopped thread by PTRACE_DETACH, and deliver the signal at which it stopped. Return 0 or -errno."""
    return 0 if _ptrace(PTRACE_DETACH, tid, 0, signum) == 0 else -_get_errno()


class PtraceCalls:
    """Calls of ptrace(2) with preallocated buffers, for one stopped thread at a time. Only one thread of the
    profiler may use an object.

    Attributes:
        regs: The registers that were read last, as 64-bit words.
        narrow_regs: The same registers as 32-bit words.
        raises_priority: True if raise_priority() has an effect.
        policy: The scheduling policy that restore_priority() restores.
    """

    def __init__(self) -> None:
        self.regs = (ctypes.c_uint64 * (REGSET_ROOM // 8))()
        self.narrow_regs = (ctypes.c_uint32 * (REGSET_ROOM // 4)).from_buffer(self.regs)
        self._regs_iov = _Iovec(ctypes.addressof(self.regs), REGSET_ROOM)
        self._regs_at = ctypes.addressof(self._regs_iov)
        self._local = _Iovec()
        self._remote = _Iovec()
        self._local_at = ctypes.addressof(self._local)
        self._remote_at = ctypes.addressof(self._remote)
        self._info = (ctypes.c_int32 * 32)()
        self._info_at = ctypes.addressof(self._info)
        self._chld = (ctypes.c_uint64 * 16)(1 << (signal.SIGCHLD - 1))
        self._chld_at = ctypes.addressof(self._chld)
        self._timeout = _Timespec()
        self._timeout_at = ctypes.addressof(self._timeout)
        self.policy = os.sched_getscheduler(0)
        self._hurrying = False
        self.raises_priority = self.policy not in (os.SCHED_FIFO, os.SCHED_RR)
        self._first, self._usual = ctypes.c_int(1), ctypes.c_int(0)  # struct sched_param: the priority
        self._first_at, self._usual_at = ctypes.addressof(self._first), ctypes.addressof(self._usual)
        self._all = (ctypes.c_uint64 * 16)(*([2**64 - 1] * 16))
        self._old = (ctypes.c_uint64 * 16)()
        _sigmask(signal.SIG_SETMASK, None, ctypes.addressof(self._old))

    def read_registers(self, tid: int) -> int:
        """Read NT_PRSTATUS of a stopped thread into the register buffer (regs). Return the number of bytes that the
        kernel delivered, or -errno.
        """
        self._regs_iov.size = REGSET_ROOM
        if _ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, self._regs_at) != 0:
            return -_get_errno()
        return int(self._regs_iov.size)

    def write_registers(self, tid: int, size: int) -> int:
        """Write the first `size` bytes of the register buffer (regs) to a stopped thread. Return 0 or -errno."""
        self._regs_iov.size = size
        return 0 if _ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, self._regs_at) == 0 else -_get_errno()

    def read_pac_mask(self, tid: int) -> int:
        """Return the bits of a stopped thread's code addresses that contain a signature (NT_ARM_PAC_MASK), or 0."""
        masks = (ctypes.c_uint64 * 2)()  # masks of data and code addresses
        iov = _Iovec(ctypes.addressof(masks), ctypes.sizeof(masks))
        failed = _ptrace(PTRACE_GETREGSET, tid, NT_ARM_PAC_MASK, ctypes.addressof(iov))
        return 0 if failed or iov.size < ctypes.sizeof(masks) else int(masks[1])

    def read_memory(self, pid: int, avma: int, size: int, into: int) -> int:
        """Copy `size` bytes at avma of a process to the address `into` in this process, with
        process_vm_readv.

        Returns:
            Number of bytes that were read, which is smaller if some are not readable; or -errno.
        """
        self._local.base = into
        self._local.size = size
        self._remote.base = avma
        self._remote.size = size
        got = _readv(pid, self._local_at, 1, self._remote_at, 1, 0)
        return int(got) if got >= 0 else -_get_errno()

    def poll_stop(self, tid: int) -> int:
        """Return the stop status of a traced thread without waiting: signal | event << 8, 0 if it has not stopped, or
        -errno.

        It never collects an exit, because the exit status of a child belongs to the process that launched it.
        """
        info = self._info
        info[_SI_SIGNO] = 0
        if _waitid(P_PID, tid, self._info_at, WSTOPPED | WNOHANG | WALL) != 0:
            return -_get_errno()
        return info[_SI_STATUS] if info[_SI_SIGNO] else 0

    def stop_reason(self, tid: int) -> int:
        """Return the stop status of a thread from its siginfo, in the form of poll_stop(); 0 if the thread is not
        stopped. It is for a stop whose wait status another component has collected.
        """
        if _ptrace(PTRACE_GETSIGINFO, tid, 0, self._info_at) != 0:
            return 0
        code = self._info[_SI_CODE]
        return code if code >> 8 == PTRACE_EVENT_STOP else self._info[_SI_SIGNO]

    def wait_sigchld(self, timeout_ns: int) -> bool:
        """Sleep until SIGCHLD (which must be blocked) is pending, and consume it. Return False if it is not
        pending after timeout_ns.
        """
        timeout = self._timeout
        timeout.sec, timeout.nsec = divmod(max(timeout_ns, 0), 1_000_000_000)
        return int(_sigtimedwait(self._chld_at, None, self._timeout_at)) > 0

    def raise_priority(self) -> None:
        """Give the calling sampling thread precedence over all other threads until restore_priority(),
        because stopped threads wait for it. Without permission (CAP_SYS_NICE) this has no effect.
        """
        if self.raises_priority and not self._hurrying:
            if _setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, self._first_at) == 0:
                self._hurrying = True
            else:
                self.raises_priority = False

    def restore_priority(self) -> None:
        """Restore the scheduling policy with which the profiler was started."""
        if self._hurrying:
            self._hurrying = False
            _setscheduler(0, self.policy, self._usual_at)

    def block_signals(self) -> None:
        """Block every signal of the sampling thread until restore_signals()."""
        _sigmask(signal.SIG_SETMASK, ctypes.addressof(self._all), ctypes.addressof(self._old))

    def restore_signals(self) -> None:
        _sigmask(signal.SIG_SETMASK, ctypes.addressof(self._old), None)


def sched_setattr(attr: bytes) -> int:
    """Call sched_setattr(2) for the calling thread. Return 0 or -errno."""
    number = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine)
    return -errno.ENOSYS if number is None else _libc["syscall"](ctypes.c_long(number), 0, attr, 0)


class Arena:
    """Memory at a fixed address. The kernel fills its pages in advance, so that a copy into it does not wait for page
    faults.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self._pin = (ctypes.c_char * size).from_buffer(self.data)
        self.address = ctypes.addressof(self._pin)


class Gatherer:
    """A reader of many memory ranges of a process into preallocated memory, while one of its threads is
    stopped. It implements model.interpreter_reader_protocols.Gather.

    The data stays valid until the next start_reads(). Broken data may lead the caller in circles while a
    thread is stopped. So after _FREE_CALLS calls and then _BUDGET_NS nanoseconds of processor time nothing
    more is read.
    """

    def __init__(self, size: int) -> None:
        self._arena = Arena(size)
        self._view = memoryview(self._arena.data)
        self._local = _Iovec()
        self._local_at = ctypes.addressof(self._local)
        self._pid = self._used = self._calls = self._end_ns = self._end_cpu_ns = 0

    def start_reads(self, pid: int) -> None:
        """Begin the reads for one stop of a thread: drop earlier data and reset the time limit."""
        self._pid, self._used, self._calls = pid, 0, 0

    def _late(self) -> bool:
        """Return True if the time limit for reading a stopped thread's memory is used up. Time in which the reader
        waited for a processor does not count.
        """
        if self._calls == _FREE_CALLS + 1:
            self._end_ns = time.monotonic_ns() + _BUDGET_NS
            self._end_cpu_ns = time.thread_time_ns() + _BUDGET_NS
        return time.monotonic_ns() > self._end_ns and time.thread_time_ns() > self._end_cpu_ns

    def __call__(self, spans: Sequence[tuple[int, int]]) -> memoryview:
        begin = self._used
        self._calls += 1
        if self._calls > _FREE_CALLS and self._late():
            return self._view[begin:begin]
        whole = True
        for first in range(0, len(spans), _IOV_MAX):
            some = spans[first : first + _IOV_MAX]
            try:
                flat = array("Q", chain.from_iterable(some))
            except OverflowError:  # an invalid pointer: the spans before it are read
                some, whole = list(takewhile(_possible, some)), False
                flat = array("Q", chain.from_iterable(some))
            size = sum(flat[1::2])
            if size > self._arena.size - self._used:
                break
            self._local.base, self._local.size = self._arena.address + self._used, size
            got = _readv(self._pid, self._local_at, 1, flat.buffer_info()[0], len(some), 0)
            self._used += max(int(got), 0)
            if got != size or not whole:
                break
        end = self._used
        self._used = end + 7 & ~7
        return self._view[begin:end]


_IOV_MAX, _BUDGET_NS = 1024, 2_000_000
_FREE_CALLS = 16  # number of calls without a time limit


def _possible(span: tuple[int, int]) -> bool:
    return 0 <= span[0] < 1 << 64 and 0 <= span[1] < 1 << 64


def memory_reader(pid: int, alive: Callable[[], bool]) -> Callable[[int, int], bytes]:
    """Return a function (ReadMemory) that reads the memory of a process.

    Every call opens the address space again, so no reader continues unnoticed after an exec.

    Args:
        pid: The process.
        alive: Function that returns False once the process image has ended. Then every read returns b"".
    """

    def read(avma: int, size: int) -> bytes:
        if size <= 0 or avma < 0 or not alive():
            return b""
        size = min(size, _MAX_READ_BYTES)
        buffer = ctypes.create_string_buffer(size)
        local, remote = _Iovec(ctypes.addressof(buffer), size), _Iovec(avma & (2**64 - 1), size)
        got = _readv(pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
        return buffer.raw[:got] if got > 0 else b""

    return read


_MAX_READ_BYTES = 1 << 30


def reap(tid: int) -> int | None:
    """Return the wait status of an ended tracee that is not a child of this process, or None."""
    try:
        got, status = os.waitpid(tid, os.WNOHANG | WALL)
    except ChildProcessError:
        return None
    return status if got else None


_perf_syscall = _libc.syscall
_perf_syscall.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, _ulong)
_perf_syscall.restype = ctypes.c_long
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "s390x": 331, "armv7l": 364, "i686": 336}
_PERF_FLAG_FD_CLOEXEC = 8
_MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
trim_heap: Callable[[int], int] = getattr(_libc, "malloc_trim", lambda _: 0)
"""The function malloc_trim(3): it returns unused heap memory to the kernel, except for the given number of
bytes. Only glibc has it.
"""
_set_malloc_option: Callable[[int, int], int] = getattr(_libc, "mallopt", lambda option, value: 0)
_M_MMAP_THRESHOLD = -3


def map_large_blocks(size: int) -> None:
    """Make malloc(3) use a separate mapping for each block of at least `size` bytes, so that free(3) returns
    it to the kernel at once.

    By default glibc raises that size to the size of each block that is freed, up to 32 MiB, and keeps such
    blocks in the heap.
    """
    _set_malloc_option(_M_MMAP_THRESHOLD, size)


def perf_event_open(attr: bytes, tid: int, cpu: int) -> int:
    """Call perf_event_open(2) without a group. Return a descriptor or -errno. The call is repeated if a
    signal interrupts it, which happens while the thread's program is being replaced.
    """
    number = _SYS_PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        return -errno.ENOSYS
    while True:
        fd = _perf_syscall(number, attr, tid, cpu, -1, _PERF_FLAG_FD_CLOEXEC)
        if fd >= 0 or _get_errno() != errno.EINTR:
            return int(fd) if fd >= 0 else -_get_errno()


def address_of(memory: mmap.mmap) -> int:
    """Return the address of an mmap object's memory in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def map_over(address: int, size: int, fd: int) -> int:
    """Map a file, shared, over existing memory of this process, by its descriptor; -1 maps private zeros.
    Return 0 or -errno.
    """
    flags = _MAP_FIXED | (mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    got = _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    return 0 if got != _MAP_FAILED else -_get_errno()


_bpf = _libc["syscall"]
_bpf.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)
_bpf.restype = ctypes.c_long
_SYS_BPF = {"x86_64": 321, "aarch64": 280}


def bpf(command: int, attr: bytearray) -> int:
    """Call bpf(2). Return its result or -errno. The kernel writes its answer into attr."""
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        return -errno.ENOSYS
    result = _bpf(number, command, (ctypes.c_char * len(attr)).from_buffer(attr), len(attr))
    return int(result) if result >= 0 else -_get_errno()


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
PR_SET_PTRACER = 0x59616D61
"""Option of prctl(2) for the security module Yama: the process that may trace this one although it is no
ancestor; 0 for none.
"""
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_ALL_THREADS = 1

_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, _ulong, _ulong, _ulong, _ulong)


def prctl(option: int, value: int) -> int:
    """Call prctl(2) with one argument. Return 0 or -errno."""
    return 0 if _prctl(option, value, 0, 0, 0) == 0 else -_get_errno()


_capset = _libc.capset
_capset.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
_CAPABILITIES_OF_64_BITS = 0x20080522


def drop_capabilities() -> int:
    """Drop all capabilities of this thread with capset(2). Return 0 or -errno."""
    head = array("I", (_CAPABILITIES_OF_64_BITS, 0)).tobytes()
    return 0 if _capset(head, bytes(24)) == 0 else -_get_errno()


_seccomp = _libc["syscall"]
_seccomp.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)
_seccomp.restype = ctypes.c_long


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_seccomp_filter(program: bytes) -> int:
    """Install a filter of struct sock_filter for all threads of this process, permanently (seccomp(2)). Return 0 or
    -errno.
    """
    number = _SYS_SECCOMP.get(os.uname().machine)
    if number is None:
        return -errno.ENOSYS
    held = _Program(len(program) // 8, program)
    got = _seccomp(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_ALL_THREADS, ctypes.addressof(held))
    return 0 if got == 0 else -(_get_errno() if got < 0 else errno.ESRCH)
