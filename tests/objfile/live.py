"""A live process for tests of images, with its mappings and the addresses of its functions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyprof.model.address_space import AddressSpace, Mapping
from tests.support import build, need

SOURCES = Path(__file__).parent / "programs"


@dataclass
class Live:
    """A process that waits.

    Attributes:
        pid: Its process id.
        at: Addresses that it printed, by name.
        process: The process object.
        fds: File descriptors to close at the end.
    """

    pid: int
    at: dict[str, int]
    process: subprocess.Popen[str]
    fds: list[int]

    def space(self, pid: int | None = None, root: str | None = None, memory: bool = True) -> AddressSpace:
        """Return the current address space.

        Args:
            pid: Pretended process id for finding files.
            root: Pretended root folder for finding files.
            memory: Whether memory can be read.
        """
        fd = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self.fds.append(fd)

        def read(avma: int, size: int) -> bytes:
            try:
                return os.pread(fd, size, avma) if memory else b""
            except (OSError, OverflowError):
                return b""

        own_root = f"/proc/{self.pid}/root"
        return AddressSpace(1, pid or self.pid, 0, mappings(self.pid), read, own_root if root is None else root)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def mappings(pid: int) -> tuple[Mapping, ...]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, perms, offset, dev, inode, *path = line.split(None, 5)
        start, end = (int(part, 16) for part in span.split("-"))
        found.append(Mapping(start, end, perms, int(offset, 16), dev, int(inode), path[0] if path else ""))
    return tuple(found)


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[Live]:
    """Start a program, wait until it prints "ready", and end it afterwards."""
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    live = Live(process.pid, {}, process, [])
    try:
        assert process.stdout is not None
        at: dict[str, int] = {}
        for line in process.stdout:
            name, _, value = line.strip().partition(" ")
            if name == "ready":
                break
            at[name] = int(value, 16)
        else:
            raise AssertionError(f"{command} did not get ready")
        live.at = at
        yield live
    finally:
        process.kill()
        process.wait(20)
        for stream in (process.stdin, process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        for fd in live.fds:
            os.close(fd)


def where(folder: Path, name: str = "where", *flags: str, compiler: str = "gcc") -> Path:
    return build(SOURCES / "where.c", folder / name, "-O1", "-ldl", *flags, compiler=compiler)


def library(folder: Path, name: str = "liblib.so", *flags: str) -> Path:
    return build(SOURCES / "library.c", folder / name, "-O1", "-shared", "-fPIC", *flags)


def symbol(path: Path, name: str) -> int:
    """Return the address of a symbol in the file according to nm."""
    out = subprocess.run([need("nm"), str(path)], capture_output=True, text=True, timeout=60, check=True).stdout
    return next(int(line.split()[0], 16) for line in out.splitlines() if line.split()[-1] == name)
