"""File operations with a timeout, for FUSE and network file systems that do not respond.

If the server of such a file system has received a request and does not answer, even SIGKILL does not end the system
call, and a process does not end before its threads. So a child process first probes a mount that is not local, and is
abandoned after a timeout. Later calls run in a separate thread with a timeout. After one timeout, no further call goes
to that mount. /proc/self/fdinfo identifies the mount of a descriptor without a request to it.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

RESPONSE_TIMEOUT_S = 2.0
MIN_TIMEOUT_S = 0.1
MAX_SILENT_MOUNTS = 3
"""Number of mounts that did not respond, above which the timeout of a file operation is MIN_TIMEOUT_S instead of
ANSWER_S seconds.
"""
_FIRST_CHECK_DELAY_S = 0.002
_POLL_INTERVAL_S = 0.05
_MOUNT = b"mnt_id:"
_MAX_INFO = 4096
_LOCAL = (b"tmpfs", b"devtmpfs", b"ramfs", b"hugetlbfs", b"btrfs", b"zfs", b"proc", b"sysfs")
"""Types of local file systems (as in /proc/PID/mountinfo) whose device number is not that of a disk."""


_over: Callable[[], bool] = bool


def set_expiry_check(over: Callable[[], bool]) -> None:
    """Set the function that returns True when the deadline of this process has passed. Pending waits for file systems
    then end.
    """
    global _over
    _over = over


def wait_for_event(event: threading.Event, seconds: float) -> bool:
    """Wait for an event, and return True if it is set within `seconds` and before the deadline of this process."""
    until = time.monotonic() + seconds
    while not event.wait(min(_POLL_INTERVAL_S, max(until - time.monotonic(), 0))):
        if _over() or time.monotonic() >= until:
            return event.is_set()
    return True


class Unanswered(OSError):
    """The file system of a foreign file did not respond in time, now or earlier."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "its file system does not answer")


class _Call:
    """A file operation that a helper thread runs, with its result.

    Attributes:
        job: The operation.
        drop: Receives a result that arrives after the timeout.
        at: Descriptor on the mount that the operation uses, -1 before that is known.
        result: The result of the operation.
        error: The exception that the operation raised, or None.
        left: The caller no longer waits for the operation.
    """

    def __init__(self, job: Callable[[], Any], drop: Callable[[Any], None] | None) -> None:
        self.job = job
        self.drop = drop
        self.at = -1
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.left = False

    def run(self) -> bool:
        """Run the file operation and return True if the caller still waits for it."""
        try:
            self.result = self.job()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        with self.lock:
            self.done.set()
        if self.left and self.drop is not None and self.error is None:
            self.drop(self.result)
        return not self.left

    def wait(self, seconds: float) -> bool:
        if not wait_for_event(self.done, seconds):
            with self.lock:
                self.left = not self.done.is_set()
        return not self.left


class _Helper:
    """A thread that runs one file operation after another, and ends after one whose caller no longer waits."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        threading.Thread(target=self._work, name="pyprof files", daemon=True).start()

    def _work(self) -> None:
        in_time = True
        while in_time:
            _here.call = self.calls.get()
            in_time = _here.call.run()
            _here.call = None  # do not keep its result alive


_here = threading.local()
_idle: list[_Helper] = []
_silent: set[int] = set()
_answering: set[tuple[int, bool]] = set()
os.register_at_fork(after_in_child=_idle.clear)


def run_with_timeout(job: Callable[[], T], drop: Callable[[T], None] | None = None) -> T:
    """Run a file operation in a helper thread and return its result.

    A job may call run_with_timeout() itself; the inner job runs directly, within the time of the outer one.

    Args:
        job: The file operation.
        drop: Receives a result that arrives after the timeout.

    Raises:
        Unanswered: The job did not end in time. Other exceptions are those of the job.
    """
    if getattr(_here, "call", None) is not None:
        return job()
    call = _Call(job, drop)
    helper = _idle.pop() if _idle else _Helper()
    helper.calls.put(call)
    if not call.wait(RESPONSE_TIMEOUT_S if len(_silent) <= MAX_SILENT_MOUNTS else MIN_TIMEOUT_S):
        if (mount := _mount(call.at)) not in _local_mounts():
            _silent.add(mount)
        raise Unanswered
    _idle.append(helper)
    if call.error is not None:
        error, call.error = call.error, None
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame, and so would keep files open
    result: T = call.result
    return result


def use_mount(found: int, is_file: bool = False) -> None:
    """Register the mount that the current file operation is about to use, by a descriptor on it. Probe the mount if it
    was not probed before.

    Raises:
        Unanswered: That mount did not respond earlier, or does not respond to a probe now.
    """
    mount = _mount(found)
    if mount in _silent:
        raise Unanswered
    call: _Call | None = getattr(_here, "call", None)
    if call is not None:
        call.at = found  # before the probe, which may outlast the call's own timeout
    if (mount, is_file) not in _answering:
        if mount not in _local_mounts() and not _answers(found):
            _silent.add(mount)
            raise Unanswered
        _answering.add((mount, is_file))


def _answers(found: int) -> bool:
    """Probe a mount in a child process. Return True if its file system responds in time.

    The child reads a file's first byte, or looks up a name in a directory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # safe: the child only makes system calls
        pid = os.fork()
    if not pid:
        _probe(found)
    until = time.monotonic() + (RESPONSE_TIMEOUT_S if len(_silent) <= MAX_SILENT_MOUNTS else MIN_TIMEOUT_S) / 2
    while time.monotonic() < until and not _over():
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:  # another thread of this process waits for all children
            return True
        time.sleep(_FIRST_CHECK_DELAY_S)
    os.kill(pid, signal.SIGKILL)
    return False


def _probe(found: int) -> None:
    try:
        os.dup2(found, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        if stat.S_ISREG(os.fstat(0).st_mode):
            os.pread(os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK), 1, 0)
        else:
            os.stat(".pyprof", dir_fd=0)
    finally:
        os._exit(0)


def stat_descriptor(fd: int) -> os.stat_result:
    """Return the fstat(2) of a descriptor, within the deadline for file operations.

    Raises:
        OSError: The call failed, or the file system did not respond.
    """
    return run_with_timeout(partial(_at, fd, os.fstat, fd))


def make_reader(fd: int, local: bool) -> Callable[[int, int], bytes]:
    """Return a function (size, offset) -> bytes that reads a file descriptor by pread, with a timeout.

    Args:
        fd: The descriptor.
        local: Result of is_local() for its file system.
    """
    if local:
        return partial(os.pread, fd)
    return lambda size, offset: run_with_timeout(partial(_at, fd, os.pread, fd, size, offset))


def close_descriptor(fd: int) -> None:
    """Close a descriptor. Never raises: a descriptor that cannot be closed in time stays open."""
    if fd < 0 or sys.is_finalizing():
        return
    try:
        run_with_timeout(partial(_at, fd, os.close, fd))
    except OSError:
        return


def _at(fd: int, call: Callable[..., T], *arguments: int) -> T:
    use_mount(fd)
    return call(*arguments)


def is_local(device: int) -> bool:
    """Return True if a file system is on a disk or in the memory of this machine.

    Args:
        device: The field st_dev of a file.
    """
    return bool(os.major(device)) or device in _local_mounts().values()


def _local_mounts() -> dict[int, int]:
    """Return the devices of this process's local mounts by mount number.

    The mounts are read at each call, because the kernel reuses mount numbers. The number -1 (unknown) counts as local,
    because a process that may open no files cannot find it out.
    """
    found = {-1: -1}
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        for row in map(bytes.split, mounts):
            major, minor = map(int, row[2].split(b":"))
            if major or row[row.index(b"-") + 1] in _LOCAL:
                found[int(row[0])] = os.makedev(major, minor)
    return found


def _mount(fd: int) -> int:
    """Return the mount number of a file descriptor, -1 if it is unknown.

    No Python file object is created, because this function runs at each file operation.
    """
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(info, _MAX_INFO)
        finally:
            os.close(info)
        return int(text[text.index(_MOUNT) + len(_MOUNT) :].split(None, 1)[0])
    except (OSError, IndexError, ValueError):
        return -1
