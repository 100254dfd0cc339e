"""Who is at the other end of a local socket, as the kernel says (unix(7)): SO_PEERCRED, SO_PEERGROUPS."""

from __future__ import annotations

import os
import socket
import struct

from pyprof.records import dataclass

_SO_PEERGROUPS = 59
"""asm-generic/socket.h. The socket module has no name for it."""
_CREDENTIALS, _MOST = struct.Struct("iII"), 1024
_ROOT = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """Of the process that connected, when it did. groups: gid among them."""

    pid: int
    uid: int
    groups: frozenset[int]

    def may_ask(self, group: int | None) -> bool:
        """group: whose members may, None for nobody's. Root may, and this process's user."""
        return self.uid in (_ROOT, os.geteuid()) or group in self.groups


def peer_of(connection: socket.socket) -> Peer:
    """Raises OSError."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST)
    except OSError:  # more than 256 groups, or a kernel before 4.13: it counts what is sure
        packed = b""
    return Peer(pid, uid, frozenset((gid, *(group for (group,) in struct.iter_unpack("I", packed)))))
