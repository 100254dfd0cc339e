"""A FUSE file system of a few files, whose server can stop responding. It needs root.

The server speaks the kernel's protocol (linux/fuse.h, 7.31) on /dev/fuse in a separate process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
INTERRUPT, BATCH_FORGET = 36, 42
_HEAD = struct.Struct("<IIQQIIII")
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def attributes(node: int, files: list[tuple[str, bytes]]) -> bytes:
    """Return struct fuse_attr of a node, where 1 is the folder and the files follow."""
    size, mode = (0, stat.S_IFDIR | 0o755) if node == 1 else (len(files[node - 2][1]), stat.S_IFREG | 0o755)
    return struct.pack("<6Q10I", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes, files: list[tuple[str, bytes]]) -> bytes | int:
    """Return the body of the response, or -errno."""
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 8, 8, 1 << 16, 1, 0, 0, 0)
    if opcode == LOOKUP:
        names = [name for name, _ in files]
        name = body.rstrip(b"\0").decode()
        found = names.index(name) + 2 if name in names else 0
        return struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + attributes(found, files) if found else -2
    if opcode == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node, files)
    if opcode == OPEN:
        return bytes(16)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return files[node - 2][1][offset : offset + size]
    if opcode == STATFS:
        return struct.pack("<5Q4I24x", 1000, 0, 0, 9, 0, 4096, 255, 4096, 0)
    return b"" if opcode in (RELEASE, FLUSH) else -38


def serve(fd: int, files: list[tuple[str, bytes]]) -> None:
    silent = []
    signal.signal(signal.SIGUSR1, lambda *_: silent.append(True))
    print("ready", flush=True)
    while True:
        request = os.read(fd, 1 << 18)
        _, opcode, unique, node, *_ = _HEAD.unpack_from(request)
        if silent or opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        said = answer(opcode, node, request[_HEAD.size :], files)
        data, error = (said, 0) if isinstance(said, bytes) else (b"", said)
        with contextlib.suppress(FileNotFoundError):  # no process waits for the response any more
            os.write(fd, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


class Mounted:
    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.server = server

    def fall_silent(self) -> None:
        self.server.send_signal(signal.SIGUSR1)


@contextlib.contextmanager
def mounted(folder: Path, *files: Path) -> Iterator[Mounted]:
    """Mount a folder with copies of these files. At the end all blocked readers continue."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions".encode()
    if _libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    command = [sys.executable, "-m", __name__, str(fd), *map(str, files)]
    try:
        with subprocess.Popen(command, pass_fds=(fd,), stdout=subprocess.PIPE, text=True) as server:
            os.close(fd)
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "ready\n"
                yield Mounted(folder, server)
            finally:
                server.kill()
    finally:
        _libc.umount2(os.fsencode(folder), _MNT_DETACH)


if __name__ == "__main__":
    serve(int(sys.argv[1]), [(Path(name).name, Path(name).read_bytes()) for name in sys.argv[2:]])
