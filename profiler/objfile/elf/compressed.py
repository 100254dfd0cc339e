"""Compressed sections: SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older), .gnu_debugdata. Bounded."""

from __future__ import annotations

import importlib
import lzma
import struct
import zlib

from pyprof.errors import FormatError

MAX_SIZE = 1 << 30
MAX_DEBUGDATA = 256 << 20
MAX_DEFLATE_RATIO = 1032
"""No deflate stream grows more; a header that claims more is a lie, and is not allocated for."""

ELFCOMPRESS_ZLIB = 1
ELFCOMPRESS_ZSTD = 2


def inflate_section(name: str, data: memoryview, elf_class: int, byteorder: str) -> memoryview:
    """The content behind an Elf32_Chdr or Elf64_Chdr. Raises FormatError."""
    order = "<" if byteorder == "little" else ">"
    header = struct.Struct(order + ("IIQQ" if elf_class == 64 else "III"))
    if len(data) < header.size:
        raise FormatError(name, 0, "compression header cut off")
    fields = header.unpack_from(data)
    kind, size = fields[0], fields[2] if elf_class == 64 else fields[1]
    body = data[header.size :]
    if kind == ELFCOMPRESS_ZLIB:
        return _inflate(name, body, size)
    if kind == ELFCOMPRESS_ZSTD:
        return _unzstd(name, body, size)
    raise FormatError(name, 0, f"unknown compression {kind}")


def inflate_zdebug(name: str, data: memoryview) -> memoryview:
    """The content of a .zdebug_ section: "ZLIB", size as 8 bytes big-endian, deflate. Raises FormatError."""
    if len(data) < 12 or bytes(data[:4]) != b"ZLIB":
        raise FormatError(name, 0, "no ZLIB header")
    return _inflate(name, data[12:], int.from_bytes(data[4:12], "big"))


def inflate_debugdata(data: memoryview) -> bytes:
    """The file in .gnu_debugdata. Raises FormatError."""
    try:
        return lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA).decompress(data, MAX_DEBUGDATA)
    except lzma.LZMAError as error:
        raise FormatError(".gnu_debugdata", 0, str(error)) from None


def _inflate(name: str, body: memoryview, size: int) -> memoryview:
    if size > min(MAX_SIZE, MAX_DEFLATE_RATIO * (len(body) + 64)):
        raise FormatError(name, 0, f"claims {size} bytes out of {len(body)}")
    try:
        data = zlib.decompressobj().decompress(body, size) if size else b""
    except zlib.error as error:
        raise FormatError(name, 0, str(error)) from None
    if len(data) != size:
        raise FormatError(name, 0, f"{len(data)} bytes where {size} were promised")
    return memoryview(data)


def _unzstd(name: str, body: memoryview, size: int) -> memoryview:
    if size > MAX_SIZE:
        raise FormatError(name, 0, f"claims {size} bytes")
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14
    except ImportError:
        zstd = None
    try:
        if zstd is not None:
            data = zstd.ZstdDecompressor().decompress(bytes(body), size) if size else b""
        else:
            try:
                zstandard = importlib.import_module("zstandard")
            except ImportError:
                raise FormatError(name, 0, "compressed with zstd: needs Python 3.14 or the package zstandard") from None
            reader = zstandard.ZstdDecompressor().stream_reader(bytes(body))
            data = reader.read(size) if size else b""
    except FormatError:
        raise
    except Exception as error:  # each of the two libraries has an error class of its own
        raise FormatError(name, 0, f"zstd: {error}") from None
    if len(data) != size:
        raise FormatError(name, 0, f"{len(data)} bytes where {size} were promised")
    return memoryview(data)
