"""Decompression and checks of the text of a symbol file while it is copied.

copy_text() takes a stream from a file or a server, compressed or not, and writes the text to a file. A compressed body
of a few kilobytes can expand to gigabytes. So the text is checked while it is copied: it must begin with a MODULE
record, must have no line over MAX_LINE bytes, and is limited in size. A part of the disk stays free.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from typing import IO, Protocol, cast

from pyprof.errors import FormatError

MAX_SIZE = 1 << 32
"""Maximum size of a decompressed symbol file in bytes. Those of browsers have 2 GB."""
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
"""Decompressors of symbol files by the first bytes of a file. Its name does not matter."""
MAX_MAGIC = 8


class _Peeked:
    """A stream whose first bytes were already read."""

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
