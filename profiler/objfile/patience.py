"""Calls on files that may never return: those of a FUSE or network file system that does not answer.

Where the server has read a request, not even SIGKILL ends the call, and a process does not end before its threads. So a
mount that is not of this machine is first asked by a child, which is left to its fate if that takes too long. Later
calls are made in a thread of their own, under a deadline. A mount that did not answer is asked for nothing more. Which
mount that is, /proc/self/fdinfo knows without asking it.
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

ANSWER_S = 2.0
LEAST_S = 0.1
MOST_SILENT = 3
"""How long a call may take; and with so many mounts that do not answer."""
_GLANCE_S = 0.002
_LOOK_S = 0.05
_MOUNT = b"mnt_id:"
_MOST_INFO = 4096
_LOCAL = (b"tmpfs", b"devtmpfs", b"ramfs", b"hugetlbfs", b"btrfs", b"zfs", b"proc", b"sysfs")
"""File systems without a device that nobody has to answer for."""


_over: Callable[[], bool] = bool


def heed(over: Callable[[], bool]) -> None:
    """From now on nothing is waited for where over() says that there is no time left."""
    global _over
    _over = over


def answered(event: threading.Event, seconds: float) -> bool:
    """Does it come within so many seconds, and while there is time?"""
    until = time.monotonic() + seconds
    while not event.wait(min(_LOOK_S, max(until - time.monotonic(), 0))):
        if _over() or time.monotonic() >= until:
            return event.is_set()
    return True


class Unanswered(OSError):
    """The file system did not answer in time, now or before."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "its file system does not answer")


class _Call:
    """at: a descriptor on the mount that is asked. drop: for a result that comes too late."""

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
        """Was the answer in time?"""
        try:
            self.result = self.job()
        except BaseException as error:
            self.error = error
        with self.lock:
            self.done.set()
        if self.left and self.drop is not None and self.error is None:
            self.drop(self.result)
        return not self.left

    def wait(self, seconds: float) -> bool:
        if not answered(self.done, seconds):
            with self.lock:
                self.left = not self.done.is_set()
        return not self.left


class _Helper:
    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        threading.Thread(target=self._work, name="pyprof files", daemon=True).start()

    def _work(self) -> None:
        in_time = True
        while in_time:
            _here.call = self.calls.get()
            in_time = _here.call.run()
            _here.call = None  # nor what it holds


_here = threading.local()
_idle: list[_Helper] = []
_silent: set[int] = set()
_answering: set[tuple[int, bool]] = set()
os.register_at_fork(after_in_child=_idle.clear)


def ask(job: Callable[[], T], drop: Callable[[T], None] | None = None) -> T:
    """What the job gives. Raises what it raises, and Unanswered. A job may ask itself, within its own time."""
    if getattr(_here, "call", None) is not None:
        return job()
    call = _Call(job, drop)
    helper = _idle.pop() if _idle else _Helper()
    helper.calls.put(call)
    if not call.wait(ANSWER_S if len(_silent) <= MOST_SILENT else LEAST_S):
        if (mount := _mount(call.at)) not in _local_mounts():
            _silent.add(mount)
        raise Unanswered
    _idle.append(helper)
    if call.error is not None:
        error, call.error = call.error, None
        try:
            raise error
        finally:
            del error  # its traceback has this frame: files that the frame knows would stay open
    result: T = call.result
    return result


def at(found: int, is_file: bool = False) -> None:
    """What comes next asks the mount of this descriptor. Raises Unanswered where that is silent."""
    mount = _mount(found)
    if mount in _silent:
        raise Unanswered
    if (mount, is_file) not in _answering:
        if mount not in _local_mounts() and not _answers(found):
            _silent.add(mount)
            raise Unanswered
        _answering.add((mount, is_file))
    call: _Call | None = getattr(_here, "call", None)
    if call is not None:
        call.at = found


def _answers(found: int) -> bool:
    """Does a child that asks for a file's first byte, or a name in a folder, come back?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child makes nothing but system calls
        pid = os.fork()
    if not pid:
        _probe(found)
    until = time.monotonic() + (ANSWER_S if len(_silent) <= MOST_SILENT else LEAST_S) / 2
    while time.monotonic() < until and not _over():
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:  # somebody in this process waits for all children
            return True
        time.sleep(_GLANCE_S)
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


def status(fd: int) -> os.stat_result:
    """fstat. Raises OSError."""
    return ask(partial(_at, fd, os.fstat, fd))


def reader(fd: int, local: bool) -> Callable[[int, int], bytes]:
    """pread of a descriptor: (size, offset) -> bytes. local: see is_local."""
    if local:
        return partial(os.pread, fd)
    return lambda size, offset: ask(partial(_at, fd, os.pread, fd, size, offset))


def close(fd: int) -> None:
    """Never raises: what is not closed in time stays open."""
    if fd < 0 or sys.is_finalizing():
        return
    try:
        ask(partial(_at, fd, os.close, fd))
    except OSError:
        return


def _at(fd: int, call: Callable[..., T], *arguments: int) -> T:
    at(fd)
    return call(*arguments)


def is_local(device: int) -> bool:
    """Does a file system stand on a disk of this machine, or in its memory? device: st_dev of a file."""
    return bool(os.major(device)) or device in _local_mounts().values()


def _local_mounts() -> dict[int, int]:
    """Those of this process: number -> device. Read each time: numbers are given again. A mount that is not known is
    one of them, for a process that may open nothing knows none.
    """
    found = {-1: -1}
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        for row in map(bytes.split, mounts):
            major, minor = map(int, row[2].split(b":"))
            if major or row[row.index(b"-") + 1] in _LOCAL:
                found[int(row[0])] = os.makedev(major, minor)
    return found


def _mount(fd: int) -> int:
    """The number of a descriptor's mount, -1 if that is not known. Asked for each call, so without a file object."""
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(info, _MOST_INFO)
        finally:
            os.close(info)
        return int(text[text.index(_MOUNT) + len(_MOUNT) :].split(None, 1)[0])
    except (OSError, IndexError, ValueError):
        return -1
