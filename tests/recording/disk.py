"""A simulated disk on which a program's system calls, as strace logged them, are replayed up to a power cut.

A file is its bytes, independent of its names; a folder is names. fsync of a file keeps its bytes and none of its names.
fsync of the folder keeps its names and no bytes. Of unsynced writes to a file each sector is present or not. Of
unsynced changes of a folder a prefix is present.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import need

SECTOR = 512
_CALLS = "openat,rename,renameat,renameat2,unlink,unlinkat,write,pwrite64,fsync,fdatasync,ftruncate,close"
_LINE = re.compile(r"\d+ +(?P<call>\w+)\((?P<words>.*)\) += (?P<result>\d+)$")
_BEGUN = " <unfinished ...>"
_RESUMED = re.compile(r"(?P<thread>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)$")
_WORD = re.compile(r'"(?P<text>(?:\\x[0-9a-f]{2})*)"|(?P<number>\d+)(?=, |$)')


@dataclass(frozen=True)
class Call:
    """A system call.

    Attributes:
        texts: Its string arguments in order.
        numbers: Its numeric arguments in order.
        result: Its return value.
        creates: Whether it has O_CREAT.
    """

    name: str
    texts: tuple[bytes, ...]
    numbers: tuple[int, ...]
    result: int
    creates: bool


@dataclass
class _File:
    """A file.

    Attributes:
        kept: Contents at the last sync.
        writes: (offset, bytes) of writes since the last sync. None for the bytes means a truncation to the offset.
        at: Offset of the next write().
    """

    kept: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    at: int = 0

    def sync(self) -> None:
        self.kept, self.writes = self.whole(lambda: True), []

    def whole(self, is_kept: Callable[[], bool]) -> bytes:
        data = bytearray(self.kept)
        for offset, written in self.writes:
            if written is None and is_kept():
                data = data[:offset].ljust(offset, b"\0")
            for first in range(0, len(written or b""), SECTOR):
                if written is not None and is_kept():
                    part, at = written[first : first + SECTOR], offset + first
                    data.extend(bytes(max(at + len(part) - len(data), 0)))
                    data[at : at + len(part)] = part
        return bytes(data)


class Disk:
    """A disk with one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder).encode()
        self._names: dict[bytes, _File] = {}
        self._changes: list[tuple[bytes, _File | None]] = []
        self._now: dict[bytes, _File] = {}
        self._open: dict[int, _File | None] = {}
        self.syncs = 0

    def play(self, call: Call) -> None:
        if call.name == "openat":
            self._opened(call)
        elif call.name.startswith("rename"):
            old, new = (self._name(text) for text in call.texts)
            if old in self._now:
                self._change(new, self._now[old])
                self._change(old, None)
        elif call.name.startswith("unlink"):
            self._change(self._name(call.texts[0]), None)
        elif call.numbers and call.numbers[0] in self._open:
            self._used(call, self._open[call.numbers[0]])

    def _name(self, path: bytes) -> bytes:
        return path.rpartition(b"/")[2]

    def _opened(self, call: Call) -> None:
        (path,) = call.texts
        name = self._name(path)
        if path == self._folder or (path == b"." and not call.creates):
            self._open[call.result] = None
        elif path == self._folder + b"/" + name or b"/" not in path:
            if name not in self._now and call.creates:
                self._change(name, _File())
            if name in self._now:
                self._open[call.result] = self._now[name]

    def _change(self, name: bytes, file: _File | None) -> None:
        self._changes.append((name, file))
        _changed(self._now, name, file)

    def _used(self, call: Call, file: _File | None) -> None:
        if call.name == "close":
            del self._open[call.numbers[0]]
        elif call.name in {"fsync", "fdatasync"}:
            self.syncs += 1
            if file is not None:
                file.sync()
            else:
                for name, what in self._changes:
                    _changed(self._names, name, what)
                self._changes = []
        elif file is not None and call.name == "pwrite64":
            file.writes.append((call.numbers[-1], call.texts[0]))
        elif file is not None and call.name == "ftruncate":
            file.writes.append((call.numbers[-1], None))
        elif file is not None and call.name == "write":
            file.writes.append((file.at, call.texts[0]))
            file.at += call.result

    def left(self, rng: random.Random, into: Path) -> None:
        """Write into a folder what a power cut leaves now.

        That is a random part of the unsynced data, or all of it, or nothing.
        """
        share = rng.choice((0.0, 0.5, 1.0))
        names = dict(self._names)
        for name, what in self._changes[: rng.randint(0, len(self._changes)) if share else 0]:
            _changed(names, name, what)
        for path in into.iterdir():
            path.unlink()
        for name, file in names.items():
            (into / name.decode()).write_bytes(file.whole(lambda: rng.random() < share))


def _changed(names: dict[bytes, _File], name: bytes, file: _File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def whole(lines: Iterable[str]) -> Iterator[str]:
    """Join the two lines that strace prints for a call that another thread's call interrupts."""
    begun: dict[str, str] = {}
    for line in lines:
        if line.endswith(_BEGUN):
            begun[line.partition(" ")[0]] = line.removesuffix(_BEGUN)
        elif resumed := _RESUMED.match(line):
            yield begun.pop(resumed["thread"], "") + resumed["rest"]
        else:
            yield line


def calls(program: str, *words: str, log: Path) -> Iterator[Call]:
    """Run a Python program under strace, and yield its successful calls in order."""
    command = [need("strace"), "-f", "-xx", "-s", "10000000", "-e", f"trace={_CALLS}", "-o", str(log)]
    subprocess.run([*command, sys.executable, "-c", program, *words], check=True)
    for line in whole(log.read_text().splitlines()):
        if match := _LINE.match(line):
            found = [*_WORD.finditer(match["words"])]
            texts = [bytes.fromhex(word["text"].replace("\\x", "")) for word in found if word["text"] is not None]
            numbers = [int(word["number"]) for word in found if word["number"] is not None]
            creates = "O_CREAT" in match["words"]
            yield Call(match["call"], tuple(texts), tuple(numbers), int(match["result"]), creates)
