"""The process at the other end of a local socket, according to the kernel (unix(7)): SO_PEERCRED, SO_PEERGROUPS."""

from __future__ import annotations

import os
import socket
import struct

from pyprof.records import dataclass

_SO_PEERGROUPS = 59
"""Value from asm-generic/socket.h, which the socket module does not define."""
_CREDENTIALS, _MOST = struct.Struct("iII"), 1024
_ROOT = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected to a local socket, as it was at that time; groups include its gid."""

    pid: int
    uid: int
    groups: frozenset[int]

    def may_ask(self, group: int | None) -> bool:
        """Return True if the connected process may make requests: root, this process's user, and members of a group
        (None for no group).
        """
        return self.uid in (_ROOT, os.geteuid()) or group in self.groups


def peer_of(connection: socket.socket) -> Peer:
    """Return the process and user at the other end of a local socket.

    Raises:
        OSError: The kernel does not state it.
    """
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST)
    except OSError:  # more than 256 groups, or a kernel before 4.13: use only the gid
        packed = b""
    return Peer(pid, uid, frozenset((gid, *(group for (group,) in struct.iter_unpack("I", packed)))))
