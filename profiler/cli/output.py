"""Where a profile is written: the file's name, checked before anything is recorded, replaced in one step.

If the place is gone or full when it is time to write, the profile is offered elsewhere rather than lost.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyprof.errors import OutputError

Write = Callable[[BinaryIO], None]


@dataclass(frozen=True, slots=True)
class Names:
    """What %p %n %t %i stand for: pid, process name, time of the window's start (epoch s), its number."""

    pid: int
    name: str
    time_s: float
    number: int

    def expand(self, template: str) -> str:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.time_s))
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.name) or "process"
        values = {"p": str(self.pid), "n": name, "t": stamp, "i": str(self.number), "%": "%"}
        out, at = [], 0
        while at < len(template):
            if template[at] == "%" and template[at + 1 : at + 2] in values:
                out.append(values[template[at + 1]])
                at += 2
            else:
                out.append(template[at])
                at += 1
        return "".join(out)


def check_writable(path: str) -> None:
    """Raise OutputError now rather than after an hour of recording. "-" is standard output."""
    if path == "-":
        return
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise OutputError(f"{path} is a directory", "name a file: -o FILE")
    if not folder.is_dir():
        raise OutputError(f"{folder} is not a directory", f"mkdir -p {folder}")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path} cannot be written: permission denied", "name another file: -o FILE")
    if target.exists() and not target.is_file():
        return  # a device or a fifo: written in place
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".pyprof-"):
            pass
    except OSError as error:
        raise OutputError(f"cannot write in {folder}: {error.strerror}", "name another place: -o FILE") from error


def write(path: str, writer: Write) -> str:
    """Write to path, all or nothing; returns where it went.

    Raises OutputError if it went elsewhere or nowhere: the message says where the profile is now.
    """
    if path == "-":
        writer(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return path
    try:
        _write_at(Path(path), writer)
        return path
    except OSError as error:
        reason = error.strerror or str(error)
    for folder in (tempfile.gettempdir(), "/dev/shm", str(Path.home()), os.getcwd()):
        other = Path(folder) / Path(path).name
        if other == Path(path):
            continue
        try:
            _write_at(other, writer)
        except OSError:
            continue
        raise OutputError(f"{path} cannot be written ({reason}); the profile is in {other}", f"mv {other} {path}")
    raise OutputError(f"{path} cannot be written ({reason}), nor any other place", "free some disk space")


def _write_at(path: Path, writer: Write) -> None:
    if path.exists() and not path.is_file():
        with open(path, "wb") as out:
            writer(out)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as out:
            writer(out)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
