"""Output files: names are checked before recording, files are replaced atomically.

If the folder is gone or its disk is full when the profile is written, the profile goes elsewhere instead of being lost.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
import time
from pathlib import Path

from pyprof.errors import OutputError
from pyprof.exporters import output_file
from pyprof.exporters.output_file import Write
from pyprof.lazy_dataclasses import dataclass

MAX_NAME = 48
"""Maximum number of characters of a process name in a file name. A command's name may be longer than a file name can
be.
"""


@dataclass(frozen=True, slots=True)
class Names:
    """The values that replace %p, %n, %t and %i in a file name: pid, process name, start of the window (local time),
    number of the window.
    """

    pid: int
    name: str
    time_s: float
    number: int

    def expand(self, template: str) -> str:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.time_s))
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.name[:MAX_NAME]) or "process"
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
    """Check that a file can be written at a path, before a recording begins.

    Raises:
        OutputError: No file can be written at the path.
    """
    if (number := output_file.find_stream(path)) is not None:
        try:
            os.fstat(number)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}", "name a file: -o FILE") from error
        return
    if path in output_file.DEVICES:
        return
    target = Path(path)
    folder = target.parent
    try:
        found = output_file.stat_entry(path)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "name another file: -o FILE") from error
    if target.is_dir():
        raise OutputError(f"{path} is a directory", "name a file: -o FILE")
    if not folder.is_dir():
        raise OutputError(f"{folder} is not a directory", f"mkdir -p {folder}")
    if found is not None and not _may_replace(found, folder, target):
        raise OutputError(f"{path} cannot be written: permission denied", "name another file: -o FILE")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".pyprof-"):
            pass
    except OSError as error:
        raise OutputError(f"cannot write in {folder}: {error.strerror}", "name another place: -o FILE") from error


def _may_replace(found: os.stat_result, folder: Path, target: Path) -> bool:
    """Return True if an output file may be replaced: it is not read-only, and it belongs to this user if its folder is
    one like /tmp.
    """
    within = folder.stat()
    if within.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid, within.st_uid):
        return False
    return stat.S_ISLNK(found.st_mode) or os.access(target, os.W_OK)


def write(path: str, writer: Write) -> str:
    """Write an output file completely or not at all, and return the path where it was written.

    Raises:
        OutputError: The profile was written elsewhere or nowhere; the message says where it is.
    """
    if path == "-":
        try:
            writer(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"standard output cannot be written ({error.strerror})", "name a file: -o FILE"
            ) from error
        return path
    try:
        if not output_file.write_in_place(path, writer):
            output_file.replace_file(path, writer)
        return path
    except OSError as error:
        reason = error.strerror or str(error)
    for folder in (tempfile.gettempdir, lambda: "/dev/shm", lambda: os.path.expanduser("~"), os.getcwd):  # noqa: S108 - a new file with a random name
        try:
            other = _write_new(folder(), "pyprof-", "-" + Path(path).name[-MAX_NAME:], writer)
        except OSError:
            continue
        hint = shlex.join(["mv", other, path])
        raise OutputError(f"{path} cannot be written ({reason}); the profile is in {other}", hint)
    raise OutputError(f"{path} cannot be written ({reason}), nor any other place", "free some disk space")


def _write_new(folder: str, prefix: str, suffix: str, writer: Write) -> str:
    """Write a new file that only this user can access. If writing fails, no file is left."""
    fd, name = tempfile.mkstemp(suffix, prefix, folder)
    try:
        with open(fd, "wb") as out:
            writer(out)
    except BaseException:
        os.unlink(name)
        raise
    return name
