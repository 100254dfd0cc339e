"""A temporary swap file, and the page-out of a process's memory."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import missing, need

_PROCESS_MADVISE, _PAGEOUT = 440, 21
_SIZE = 128 << 20
_MAPPING = re.compile(r"^(\w+)-(\w+) (\S+) (?:\S+ ){3}\s*(.*)$", re.MULTILINE)
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def swap_file() -> Iterator[None]:
    """Enable a temporary swap file."""
    path = Path("/var/tmp") / f"pyprof-swap-{os.getpid()}"
    path.touch(mode=0o600)
    try:
        with path.open("wb") as file:
            for _ in range(_SIZE >> 20):
                file.write(bytes(1 << 20))  # swapon(2) refuses files with holes
        subprocess.run([need("mkswap"), str(path)], check=True, capture_output=True, timeout=60)
        done = subprocess.run([need("swapon"), str(path)], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            missing(f"needs a kernel that swaps, and root: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["swapoff", str(path)], check=True, timeout=120)
    finally:
        path.unlink()


class Pages:
    """The writable pages of a running process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd = os.pidfd_open(pid)

    def leave(self) -> int:
        """Page out all writable anonymous memory and return the number of bytes. Used pages come back at once."""
        total = 0
        for start, end, rights, name in _MAPPING.findall(Path(f"/proc/{self._pid}/maps").read_text()):
            if "w" in rights and not name.startswith("/"):
                first, last = int(start, 16), int(end, 16)
                span = ctypes.create_string_buffer(struct.pack("=QQ", first, last - first))
                total += max(_LIBC.syscall(_PROCESS_MADVISE, self._fd, span, ctypes.c_size_t(1), _PAGEOUT, 0), 0)
        return total

    def close(self) -> None:
        os.close(self._fd)
