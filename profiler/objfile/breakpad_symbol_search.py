"""Search for symbol files in files, directories and servers, and checks of their text while it is copied.

copy_text() takes a stream from a file or a server, compressed or not, and writes the text to a file. A compressed body
of a few kilobytes can expand to gigabytes. So the text is checked while it is copied: it must begin with a MODULE
record, must have no line over MAX_LINE bytes, and is limited in size. A part of the disk stays free.

Directories and HTTP servers have the layout NAME/ID/NAME.sym. For a Windows module, NAME is its PDB, and the file is
NAME/ID/NAME-without-.pdb.sym. SymbolStore takes the places that the user named, and returns the SymbolFile of an object
file, proved by its identifier. A symbol file of another build is reported and not used. Files may be compressed (.gz,
.xz). Only a place that does not exist raises UsageError.

Source: src/processor/simple_symbol_supplier.cc of Breakpad.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Protocol, cast

from pyprof.errors import FormatError, UsageError
from pyprof.model.loss_reason_texts import problem
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.breakpad_records import breakpad_id, is_same_id
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import FileSource, open_regular
from pyprof.objfile.untrusted_file_access import current_opener
from pyprof.problem_counters import Diagnostics

if TYPE_CHECKING:
    from pyprof.objfile.symbol_servers import SymbolServer


MAX_SIZE = 1 << 32
"""Maximum size of a decompressed symbol file in bytes. The symbol files of browsers have 2 GB."""
MAX_LINE = 1 << 20
CHUNK = 1 << 20
RESERVE = 0.05
"""Fraction of the disk that must stay free when a symbol file is decompressed."""
HEAD = b"MODULE "


class TextStream(Protocol):
    """A readable stream with the text of a symbol file."""

    def read(self, size: int, /) -> bytes: ...


OPENERS: dict[bytes, Callable[[TextStream], TextStream]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=cast(IO[bytes], stream)),
    b"\xfd7zXZ": lambda stream: cast(TextStream, lzma.LZMAFile(cast(IO[bytes], stream))),  # noqa: SIM115
}
"""Functions that open a compressed symbol file, by the first bytes of the file. The file's name does not matter."""
MAX_MAGIC = 8


class _Peeked:
    """A text stream that returns first the beginning that was already read, then the rest."""

    def __init__(self, head: bytes, stream: TextStream) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not self._head:
            return self._stream.read(size)
        taken, self._head = self._head[:size], self._head[size:]
        return taken


def copy_text(stream: TextStream, out: IO[bytes], name: str) -> None:
    """Write the text of a symbol file to another file, and decompress it if necessary.

    Args:
        stream: The stream.
        out: The file.
        name: Name of the symbol file, for messages.

    Raises:
        FormatError: The text is not that of a symbol file, is too large, or the compression is broken.
        OSError: Reading or writing failed.
    """
    head = b""
    while len(head) < MAX_MAGIC and (more := stream.read(MAX_MAGIC - len(head))):
        head += more
    plain: TextStream = _Peeked(head, stream)
    for magic, opener in OPENERS.items():
        if head.startswith(magic):
            plain = opener(plain)
    try:
        _copy(plain, out, name)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(name, 0, f"broken compression: {error}") from None


def _copy(stream: TextStream, out: IO[bytes], name: str) -> None:
    size = line = 0
    head = b""
    disk = os.fstatvfs(out.fileno())
    room = (disk.f_bavail - RESERVE * disk.f_blocks) * disk.f_frsize
    while data := stream.read(CHUNK):
        if len(head) < len(HEAD):
            head += data[: len(HEAD) - len(head)]
            if not HEAD.startswith(head):
                raise FormatError(name, 0, "no symbol file: it does not begin with a MODULE record")
        last = data.rfind(b"\n")
        line = len(data) - 1 - last if last >= 0 else line + len(data)
        if line > MAX_LINE:
            raise FormatError(name, size, f"a line of over {MAX_LINE} bytes")
        size += len(data)
        if size > MAX_SIZE:
            raise FormatError(name, size, f"over {MAX_SIZE} bytes when unpacked")
        if size > room:
            raise FormatError(name, size, "it would fill the disk")
        out.write(data)
    if len(head) < len(HEAD):
        raise FormatError(name, 0, "no symbol file: it does not begin with a MODULE record")


MAX_NAME = 240
"""Maximum length in bytes of a module's name in a symbol store, with room for .sym.gz. Crash dumps may contain any
name.
"""
DIFFERS = "symbol_file_of_other_build"

SUFFIXES = ("", ".gz", ".xz")


def symbol_file_name(name: str) -> str:
    """Return the name of a module's Breakpad symbol file in a store. For a Windows module, `name` is that of its
    PDB.
    """
    return (name[:-4] if name.lower().endswith(".pdb") else name) + ".sym"


class SymbolStore:
    """A finder of Breakpad symbol files in folders and on servers. The search runs once for each object file, and its
    result is cached.
    """

    def __init__(self, places: Sequence[str], diagnostics: Diagnostics, cache: str | None = None) -> None:
        """Create a search for Breakpad symbol files in the given places.

        Args:
            places: Paths and URLs in the order of the search.
            diagnostics: Counters of the recording.
            cache: Directory for downloaded files, None for the default.

        Raises:
            UsageError: A path does not exist.
        """
        self._diagnostics = diagnostics
        self._files: list[str] = []
        self._folders: list[str | SymbolServer] = []
        self._opened: dict[str, SymbolFile | None] = {}
        self._found: dict[ObjectFile, SymbolFile | None] = {}
        self._paths: dict[ObjectFile, str] = {}
        for place in places:
            if place.startswith(("http://", "https://")):
                from pyprof.objfile.symbol_servers import SymbolServer

                self._folders.append(SymbolServer(place, diagnostics, cache))
            elif os.path.isdir(place):
                self._folders.append(place)
            elif os.path.exists(place):
                self._files.append(place)
            else:
                raise UsageError(f"--symbols {place}: no such file or directory")

    def register_file(self, file: ObjectFile, path: str) -> None:
        """Register an object file that a target maps, with the path that the target uses, for a search of its symbol
        file.
        """
        self._paths.setdefault(file, path)

    def find_mapped(self, file: ObjectFile) -> SymbolFile | None:
        """Return the Breakpad symbol file of an object file that register_file() registered.

        The result is None for other object files, such as separate debug files.
        """
        return self.find(file) if file in self._paths else None

    def find(self, file: ObjectFile) -> SymbolFile | None:
        """Return the Breakpad symbol file of an object file, or None."""
        if file not in self._found:
            self._found[file] = self._search(file, self._paths.get(file, file.name))
        return self._found[file]

    def _search(self, file: ObjectFile, path: str) -> SymbolFile | None:
        name, wanted = os.path.basename(path), breakpad_id(file)
        others = []
        for candidate in self._candidates(name, wanted):
            found = self._open(candidate)
            if found is None:
                continue
            if is_same_id(wanted, found.module.id) and (not file.build_id or file.build_id.startswith(found.code_id)):
                return found
            if found.module.name == name:
                others.append(found)
        for other in others:
            self._diagnostics.count(DIFFERS)
            self._diagnostics.problem(
                path,
                problem("symbol_file_differs", file=other.name, stated=other.module.id, wanted=wanted)
                if wanted
                else problem("symbol_file_not_proved", file=other.name),
            )
        return None

    def _candidates(self, name: str, wanted: str) -> Iterator[str]:
        yield from self._files
        if name in ("", ".", "..") or "\0" in name or len(os.fsencode(name)) > MAX_NAME:
            return
        for folder in self._folders:
            if not isinstance(folder, str):
                fetched = folder.fetch(name, wanted, symbol_file_name(name)) if wanted else None
                if fetched is not None:
                    yield fetched
                    folder.forget(fetched)  # the caller continues only if it has rejected the file
                continue
            yield from _in_folder(folder, name, wanted)

    def _open(self, path: str) -> SymbolFile | None:
        if path not in self._opened:
            try:
                self._opened[path] = open_symbol_file(path, self._diagnostics)
            except (FormatError, OSError) as error:
                self._opened[path] = None
                self._diagnostics.count("symbol_file_not_opened")
                self._diagnostics.problem(path, problem("symbol_file_unreadable", why=error))
        return self._opened[path]


def _in_folder(folder: str, name: str, wanted: str) -> Iterator[str]:
    """Yield the path of a module's symbol file in a folder, by the wanted identifier. If there is none, yield a few
    with other identifiers, so that they can be reported.
    """
    exact = []
    for spelled in dict.fromkeys((wanted, wanted.lower())):
        for suffix in SUFFIXES if spelled else ():
            path = os.path.join(folder, name, spelled, symbol_file_name(name) + suffix)
            if os.path.isfile(path):
                exact.append(path)
    if exact:
        yield exact[0]
        return
    try:
        ids = sorted(os.listdir(os.path.join(folder, name)))[:4]
    except OSError:
        return
    for other in ids:
        for suffix in SUFFIXES:
            path = os.path.join(folder, name, other, symbol_file_name(name) + suffix)
            if os.path.isfile(path):
                yield path


def is_symbol_file(path: str) -> bool:
    """Return True if the file begins like a Breakpad symbol file or is compressed.

    Raises:
        OSError: The file cannot be read.
        FormatError: The file is not a regular file.
    """
    with open(open_regular(path), "rb") as file:
        head = file.read(MAX_MAGIC)
    return head.startswith((HEAD, *OPENERS))


def open_symbol_file(path: str, diagnostics: Diagnostics) -> SymbolFile:
    """Open a Breakpad symbol file, and decompress it if necessary.

    Raises:
        OSError: The file cannot be read.
        FormatError: The file is not a symbol file.
    """
    fd = open_regular(path)
    if not os.pread(fd, MAX_MAGIC, 0).startswith(tuple(OPENERS)):
        return SymbolFile(FileSource(fd), path, diagnostics)
    with open(fd, "rb") as packed:
        return SymbolFile(FileSource(_inflated(packed, path)), path, diagnostics)


def _inflated(stream: TextStream, path: str) -> int:
    """Decompress the stream of a symbol file and return the descriptor of an unnamed temporary file with its
    content.
    """
    fd = current_opener().create_scratch_file()
    try:
        with open(fd, "wb", closefd=False) as plain:
            copy_text(stream, plain, path)
    except BaseException:
        os.close(fd)
        raise
    return fd
