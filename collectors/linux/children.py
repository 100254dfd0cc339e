"""Finds the children of sampled processes: by the kernel's proc connector where it is allowed, else by polling /proc.

The connector (linux/cn_proc.h) needs CAP_NET_ADMIN and the first network, pid and user namespace. It reports every fork
and exit. Polling reads /proc/PID/task/*/children, within a share of the time.
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
from pyprof.diagnostics import Diagnostics
from pyprof.model.reasons import said

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
_MOST_MESSAGES = 20_000
_BUDGET = 50  # a look that took t is followed by none for 50 t

POLLING_NOTE = said("children_polled")


class ChildFinder(Protocol):
    """note: what the reader of the profile should know, "" if nothing. news: a descriptor that can be read when there
    may be something to find, -1 if none.
    """

    note: str

    @property
    def news(self) -> int: ...

    def find(self, pids: Iterable[int]) -> list[int]:
        """Pids that may be new children of these processes; some may have ended already."""
        ...

    def close(self) -> None: ...


def child_finder(diagnostics: Diagnostics, is_sampled: Callable[[int], bool]) -> ChildFinder:
    """The best that the system allows. is_sampled: has this pid a sample?"""
    try:
        return Connector(diagnostics, is_sampled)
    except OSError:
        return Poller()


class Connector:
    """Children as the kernel reports them. Raises OSError where it does not."""

    note = ""

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
    def news(self) -> int:
        return self._socket.fileno()

    def find(self, pids: Iterable[int]) -> list[int]:
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
                    self._diagnostics.count("child ended before its first sample")
        if self._look_again:  # those that were there before we listened, or after an overflow
            self._look_again = False
            for child in descendants(self._known):
                self._known.add(child)
                new[child] = None
        return list(new)

    def _events(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        for _ in range(_MOST_MESSAGES):
            try:
                message = self._socket.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return
                self._diagnostics.count("too many processes began at once to follow them all")
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
    """Children by reading /proc: what begins and ends between two readings is not seen."""

    note = POLLING_NOTE
    news = -1

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._not_before = 0
        self._by_parent = not os.path.exists(f"/proc/self/task/{os.getpid()}/children")

    def find(self, pids: Iterable[int]) -> list[int]:
        before = self._clock()
        if before < self._not_before:
            return []
        found = children_by_parent(set(pids)) if self._by_parent else descendants(pids)
        after = self._clock()
        self._not_before = after + _BUDGET * (after - before)
        return found

    def close(self) -> None:
        pass


def parse_event(message: bytes) -> tuple[int, tuple[int, ...]] | None:
    """(_FORK, (parent tid, parent, child tid, child)) or (_EXIT, (tid, pid)); None for other messages."""
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


def descendants(pids: Iterable[int]) -> list[int]:
    """Children, their children and so on, of processes that are alive; without these themselves."""
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


def children_by_parent(pids: set[int]) -> list[int]:
    """The same for kernels without /proc/PID/task/TID/children: from the parents of all processes."""
    parents: dict[int, int] = {}
    for pid in procfs.all_pids():
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
    """By poll: select knows no file descriptor above 1023, and a recording may hold thousands."""
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    return bool(waiting.poll(within_s * 1000))


def _request(operation: int) -> bytes:
    """A message that turns the events on or off."""
    body = struct.pack("=I", operation)
    message = _CN_MSG.pack(_CN_IDX_PROC, _CN_VAL_PROC, 0, 0, len(body), 0) + body
    return _NLMSGHDR.pack(_NLMSGHDR.size + len(message), _NLMSG_DONE, 0, 0, 0) + message
