"""A finder of the children of sampled processes: the kernel's proc connector if it is permitted, else polling of /proc.

The connector (linux/cn_proc.h) needs CAP_NET_ADMIN and the initial network, pid and user namespaces. It reports every
fork and exit. Polling reads /proc/PID/task/*/children, within a share of the time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pyprof.collectors.linux import procfs
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.problem_counters import Diagnostics

_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_LISTEN, _IGNORE = 1, 2
_NLMSG_DONE = 3
_NLMSGHDR = struct.Struct("=IHHII")
_CN_MSG = struct.Struct("=IIIIHH")
_EVENT = struct.Struct("=IIQ")
_FORK, _EXIT = 1, 0x80000000
_FOUR = struct.Struct("=IIII")
_TWO = struct.Struct("=II")
_ACK_S = 0.1
_MAX_MESSAGES = 20_000
_BUDGET = 50
"""Factor that limits the search for child processes: a search that used t nanoseconds of processor time is followed by
a pause of 50 t.
"""

POLLING_NOTE = make_note("children_polled")


class ChildFinder(Protocol):
    """The protocol of an object that finds the child processes of recorded processes.

    Attributes:
        note: A note for the summary, or None.
        event_fd: Descriptor that becomes readable when there may be new children, or -1.
    """

    note: Note | None

    @property
    def event_fd(self) -> int: ...

    def find_children(self, pids: Iterable[int]) -> list[int]:
        """Return the pids of processes that may be new children of the given processes. Some may have ended."""
        ...

    def close(self) -> None: ...


def open_child_finder(diagnostics: Diagnostics, is_sampled: Callable[[int], bool]) -> ChildFinder:
    """Return the best finder of child processes that the system permits. `is_sampled` returns True for a pid
    that has samples.
    """
    try:
        return Connector(diagnostics, is_sampled)
    except OSError:
        return Poller()


class Connector:
    """A finder of child processes that uses the kernel's proc connector. Its constructor raises OSError if
    the kernel refuses the proc connector.
    """

    note: Note | None = None

    def __init__(self, diagnostics: Diagnostics, is_sampled: Callable[[int], bool]) -> None:
        self._diagnostics = diagnostics
        self._is_sampled = is_sampled
        self._known: set[int] = set()
        self._look_again = True
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, flags, _NETLINK_CONNECTOR)
        try:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            self._socket.bind((0, _CN_IDX_PROC))
            self._socket.send(_request(_LISTEN))
            if not _readable(self._socket, _ACK_S):
                raise OSError(errno.ENOTSUP, "the proc connector does not answer")
        except OSError:
            self._socket.close()
            raise

    @property
    def event_fd(self) -> int:
        return self._socket.fileno()

    def find_children(self, pids: Iterable[int]) -> list[int]:
        self._known.update(pids)
        new: dict[int, None] = {}
        for what, words in self._events():
            if what == _FORK:
                _, parent, thread, child = words
                if child == thread and parent in self._known:
                    self._known.add(child)
                    new[child] = None
            elif words[0] == words[1] and words[0] in self._known:
                ended = words[0]
                self._known.discard(ended)
                new.pop(ended, None)
                if not self._is_sampled(ended):
                    self._diagnostics.count("process_ended_early")
        if self._look_again:  # children that existed before the socket was open, or that an overflow lost
            self._look_again = False
            for child in find_descendants(self._known):
                self._known.add(child)
                new[child] = None
        return list(new)

    def _events(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        for _ in range(_MAX_MESSAGES):
            try:
                message = self._socket.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return
                self._diagnostics.count("too_many_new_processes")
                self._look_again = True
                continue
            event = parse_event(message)
            if event is not None:
                yield event

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(_request(_IGNORE))
        self._socket.close()


class Poller:
    """A finder of child processes that reads /proc repeatedly. It misses children that start and end between
    two readings.
    """

    note: Note | None = POLLING_NOTE
    event_fd = -1

    def __init__(self) -> None:
        self._not_before = 0
        self._by_parent = not os.path.exists(f"/proc/self/task/{os.getpid()}/children")

    def find_children(self, pids: Iterable[int]) -> list[int]:
        if time.monotonic_ns() < self._not_before:
            return []
        before = time.thread_time_ns()
        found = list_children_by_parent(set(pids)) if self._by_parent else find_descendants(pids)
        self._not_before = time.monotonic_ns() + _BUDGET * (time.thread_time_ns() - before)
        return found

    def close(self) -> None:
        pass


def parse_event(message: bytes) -> tuple[int, tuple[int, ...]] | None:
    """Parse a message of the kernel's proc connector. Return (_FORK, (parent tid, parent pid, child tid,
    child pid)), (_EXIT, (tid, pid)), or None for other messages.
    """
    at = _NLMSGHDR.size + _CN_MSG.size
    if len(message) < at + _EVENT.size:
        return None
    index, value, *_ = _CN_MSG.unpack_from(message, _NLMSGHDR.size)
    if (index, value) != (_CN_IDX_PROC, _CN_VAL_PROC):
        return None
    what, _, _ = _EVENT.unpack_from(message, at)
    at += _EVENT.size
    if what == _FORK and len(message) >= at + _FOUR.size:
        return what, _FOUR.unpack_from(message, at)
    if what == _EXIT and len(message) >= at + _TWO.size:
        return what, _TWO.unpack_from(message, at)
    return None


def find_descendants(pids: Iterable[int]) -> list[int]:
    """Return the children of living processes, the children of these, and so on, without the processes themselves."""
    seen = set(pids)
    found: list[int] = []
    todo = list(seen)
    while todo:
        try:
            directory = procfs.ProcDir(todo.pop())
        except OSError:
            continue
        try:
            children = directory.children()
        except OSError:
            continue
        finally:
            directory.close()
        for child in children:
            if child not in seen:
                seen.add(child)
                found.append(child)
                todo.append(child)
    return found


def list_children_by_parent(pids: set[int]) -> list[int]:
    """Return all descendants of processes by reading the parents of all processes, for kernels without
    /proc/PID/task/TID/children.
    """
    parents: dict[int, int] = {}
    for pid in procfs.list_pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parents[pid] = procfs.parse_stat(file.read()).ppid
        except OSError:
            continue
    pids = set(pids)
    found: list[int] = []
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if parent in pids and pid not in pids:
                pids.add(pid)
                found.append(pid)
                grown = True
    return found


def _readable(channel: socket.socket, within_s: float) -> bool:
    """Wait until a socket is readable, for within_s seconds at most, and return True if it is. This needs
    poll(2): select(2) supports no descriptor above 1023, and a recording may have thousands open.
    """
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    return bool(waiting.poll(within_s * 1000))


def _request(operation: int) -> bytes:
    """Return a message that switches the events of the kernel's proc connector on or off."""
    body = struct.pack("=I", operation)
    message = _CN_MSG.pack(_CN_IDX_PROC, _CN_VAL_PROC, 0, 0, len(body), 0) + body
    return _NLMSGHDR.pack(_NLMSGHDR.size + len(message), _NLMSG_DONE, 0, 0, 0) + message
