"""One end of a socket between two processes of pyprof. It transfers whole messages, with file descriptors.

A message consists of a few byte strings, its parts. Small messages travel in the socket. A large message is written to
a memory file, and the socket carries its descriptor, so neither end blocks while megabytes are copied. The memory file
is sealed where the kernel allows it. Then the receiver maps it without a copy, and the kernel frees the memory when the
last part is released. message_codec.py and response_codec.py define what the parts contain.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from array import array
from collections.abc import Sequence
from typing import Self

from pyprof.collectors.linux.process_sandbox import create_memory_file
from pyprof.lazy_dataclasses import dataclass

Part = bytes | bytearray | memoryview

_ALIGNED = 16
_FD_SIZE = array("i").itemsize
_INLINE = 1 << 14
"""Maximum number of bytes of a message that travel in the socket itself."""
_MAX_PARTS = 1 << 16
MAX_FDS = 240
"""Maximum number of file descriptors of one message. The kernel's limit (SCM_MAX_FD) is 253."""
_MAX_BYTES = 4 << 30
_HEAD = struct.Struct("<QII")
"""Format of the header of a message between processes: padded bytes of all parts, number of parts, flag for parts in a
memory file.
"""
_IOV_MAX = 512
_PIECE = 1 << 20
"""Number of bytes of a message that are copied at once from an unsealed memory file."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a memory file (fcntl(2)) that stop the sender from changing or truncating mapped memory. A file without them
is copied.
"""


class Closed(Exception):
    """The other end of a message channel has closed it, or sent invalid data."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message that arrived at a channel, with its file descriptors.

    Attributes:
        parts: Read-only views of one buffer; each begins at a multiple of 16 bytes.
        fds: File descriptors, which the receiver must close.
    """

    parts: tuple[memoryview, ...]
    fds: tuple[int, ...]


class Channel:
    """One end of a socket pair that transfers messages. The object owns its socket and is not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, parts: Sequence[Part], fds: Sequence[int] = ()) -> None:
        """Send a message to the other process. Block while the socket buffer is full.

        Raises:
            Closed: The other end has closed the channel.
        """
        while not self.try_send(parts, fds):
            select.poll().poll(1)
            self._wait(select.POLLOUT)

    def try_send(self, parts: Sequence[Part], fds: Sequence[int] = ()) -> bool:
        """Send a message to the other process unless the socket buffer is full.

        Args:
            parts: The data.
            fds: At most MAX_FDS file descriptors; they stay the caller's.

        Returns:
            False if the socket buffer is full.

        Raises:
            Closed: The other end has closed the channel.
        """
        sizes = [len(part) for part in parts]
        total = sum(_padded(size) for size in sizes)
        table = struct.pack(f"<{len(sizes)}Q", *sizes).ljust(_padded(8 * len(sizes)), b"\0")
        body, file = [_aligned(part) for part in parts], -1
        outside = total + len(table) > _INLINE
        if outside:
            file = _memory_file([table, *(piece for pair in body for piece in pair)])
            fds, body, table = [file, *fds], [], b""
        head = _HEAD.pack(total, len(sizes), outside)
        try:
            data = b"".join([head, table, *(piece for pair in body for piece in pair)])
            self._socket.sendmsg([data], _attached(fds), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed(str(error)) from None
        finally:
            if file >= 0:
                os.close(file)
        return True

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """Receive the next message from the other process.

        Args:
            timeout_s: Maximum wait in seconds: 0 does not block, None blocks without limit.

        Returns:
            The message, or None after a timeout.

        Raises:
            Closed: The other end has closed the channel, or has sent an invalid message.
        """
        if timeout_s is not None and not self._wait(select.POLLIN, timeout_s):
            return None
        try:
            data, attached, flags, _ = self._socket.recvmsg(
                _INLINE + _HEAD.size, socket.CMSG_LEN(_FD_SIZE * (MAX_FDS + 1)), socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Closed(str(error)) from None
        fds = [fd for _, _, some in attached for fd in array("i", some[: len(some) // _FD_SIZE * _FD_SIZE])]
        try:
            if len(data) < _HEAD.size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise Closed("no message" if data else "end of file")
            return _parsed(memoryview(bytearray(data)), fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def _wait(self, event: int, timeout_s: float | None = None) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def wait(self, sending: bool, timeout_s: float | None = None) -> None:
        """Wait until a message of the other process can be received or, if `sending`, until another message can be
        sent.
        """
        self._wait(select.POLLIN | (select.POLLOUT if sending else 0), timeout_s)

    def hang_up(self) -> None:
        """Shut the connection to the other process down for both ends. May be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end of the message channel. May be called twice."""
        self._socket.close()


def _attached(fds: Sequence[int]) -> list[tuple[int, int, array[int]]]:
    """Return file descriptors as the ancillary data for sendmsg. socket.send_fds and recv_fds are not used, because
    they ignore their flags in CPython 3.11.
    """
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _aligned(part: Part) -> tuple[Part, bytes]:
    return part, bytes(_padded(len(part)) - len(part))


def _memory_file(pieces: Sequence[Part]) -> int:
    file = create_memory_file("pyprof", sealing=True)
    try:
        for at in range(0, len(pieces), _IOV_MAX):
            rest = [memoryview(piece) for piece in pieces[at : at + _IOV_MAX] if len(piece)]
            while rest:
                written = os.writev(file, rest)
                while rest and written >= len(rest[0]):
                    written -= len(rest.pop(0))
                if written:
                    rest[0] = rest[0][written:]
        _seal(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _seal(file: int) -> None:
    """Seal a memory file, unless the kernel still uses one of its pages (EBUSY). Then the receiver makes a copy."""
    try:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def _parsed(data: memoryview, fds: Sequence[int]) -> Received:
    total, count, outside = _HEAD.unpack_from(data)
    if count > _MAX_PARTS or total > _MAX_BYTES or (outside and not fds):
        raise Closed("a message that cannot be")
    table_size = _padded(8 * count)
    if outside:
        body = _whole_file(fds[0], table_size + total)
        os.close(fds[0])
        fds = fds[1:]
    else:
        body = data[_HEAD.size :]
    if len(body) < table_size + total:
        raise Closed("a message that was cut off")
    sizes = struct.unpack_from(f"<{count}Q", body)
    parts, at = [], table_size
    for size in sizes:
        if at + size > len(body):
            raise Closed("a message that was cut off")
        parts.append(body[at : at + size])
        at += _padded(size)
    return Received(tuple(parts), tuple(fds))


def _whole_file(fd: int, size: int) -> memoryview:
    """Return the contents of a memory file that was received.

    A sealed file is mapped, with all pages populated. Any other file is copied, because the sender could still write to
    it.

    Raises:
        Closed: The descriptor is no memory file, or the file is shorter than `size` bytes.
    """
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        raise Closed("a message that is no memory file") from None
    if os.fstat(fd).st_size < size:
        raise Closed("a message that was cut off")
    if sealed:
        return memoryview(mmap.mmap(fd, size, mmap.MAP_PRIVATE | mmap.MAP_POPULATE, mmap.PROT_READ))
    copy, at = bytearray(size), 0
    while piece := os.pread(fd, min(size - at, _PIECE), at):
        copy[at : at + len(piece)] = piece
        at += len(piece)
    if at < size:
        raise Closed("a message that was cut off")
    return memoryview(copy).toreadonly()
