"""Compressed sections: SHF_COMPRESSED (gABI "Section Compression"), .zdebug_ (older), .gnu_debugdata.

Sizes are limited.
"""

from __future__ import annotations

import importlib
import lzma
import struct
import zlib
from collections.abc import Callable

from pyprof.errors import FormatError
from pyprof.objfile.content_limit import hold_bytes

MAX_SIZE = 1 << 30
MAX_DEBUGDATA = 256 << 20
MAX_RATIO = 128
"""Maximum ratio by which debug information may expand. Compilers' output expands fourfold; more is a decompression
bomb.
"""
ALWAYS_ALLOWED = 8 << 20
"""Size in bytes to which any compressed section may expand."""

ELFCOMPRESS_ZLIB = 1
ELFCOMPRESS_ZSTD = 2


def inflate_section(
    name: str, data: memoryview, elf_class: int, byteorder: str, enough: int | None = None
) -> memoryview:
    """Return the decompressed content of a section after its Elf32_Chdr or Elf64_Chdr.

    Args:
        name: Name of the section, for messages.
        data: Bytes of the section.
        elf_class: 32 or 64.
        byteorder: "little" or "big".
        enough: Number of bytes from the beginning that suffice.

    Raises:
        FormatError: The section is broken, too large, or its compression is not supported.
    """
    order = "<" if byteorder == "little" else ">"
    header = struct.Struct(order + ("IIQQ" if elf_class == 64 else "III"))
    if len(data) < header.size:
        raise FormatError(name, 0, "compression header cut off")
    fields = header.unpack_from(data)
    kind, size = fields[0], fields[2] if elf_class == 64 else fields[1]
    body = data[header.size :]
    if kind == ELFCOMPRESS_ZLIB:
        return _unpacked(name, body, size, _deflated, enough)
    if kind == ELFCOMPRESS_ZSTD:
        return _unpacked(name, body, size, _zstd)
    raise FormatError(name, 0, f"unknown compression {kind}")


def inflate_zdebug(name: str, data: memoryview) -> memoryview:
    """Return the content of a .zdebug_ section: "ZLIB", size as 8 bytes big-endian, deflate data.

    Raises:
        FormatError: The section is broken or too large.
    """
    if len(data) < 12 or bytes(data[:4]) != b"ZLIB":
        raise FormatError(name, 0, "no ZLIB header")
    return _unpacked(name, data[12:], int.from_bytes(data[4:12], "big"), _deflated)


def inflate_debugdata(data: memoryview) -> memoryview:
    """Return the ELF file in .gnu_debugdata, decompressed.

    Raises:
        FormatError: The section is broken or too large.
    """
    name, most = ".gnu_debugdata", _most(data, MAX_DEBUGDATA)

    def unpack() -> bytes:
        unpacker = lzma.LZMADecompressor(memlimit=MAX_DEBUGDATA)
        try:
            content = unpacker.decompress(data, most)
        except lzma.LZMAError as error:
            raise FormatError(name, 0, str(error)) from None
        if not unpacker.eof:
            raise FormatError(name, 0, f"cut off, or over {most} bytes out of {len(data)}")
        return content

    return hold_bytes(name, most, unpack)


def _most(body: memoryview, size: int) -> int:
    """Return the size in bytes to which compressed data may expand, at most `size`."""
    return min(size, max(MAX_RATIO * len(body), ALWAYS_ALLOWED))


def _unpacked(
    name: str, body: memoryview, size: int, unpack: Callable[[memoryview, int], bytes], enough: int | None = None
) -> memoryview:
    """Decompress the data of a section and check its size.

    Args:
        name: Name of the section, for messages.
        body: The compressed data.
        size: Size of the content in bytes.
        unpack: Function that takes compressed data and the wanted size, and returns the content. It may raise any
            exception.
        enough: Number of bytes from the beginning that suffice.
    """
    if size > _most(body, MAX_SIZE):
        raise FormatError(name, 0, f"claims {size} bytes out of {len(body)}")
    size = size if enough is None else min(size, enough)

    def checked() -> bytes:
        try:
            data = unpack(body, size) if size else b""
        except FormatError:
            raise
        except Exception as error:  # each library has a separate error class
            raise FormatError(name, 0, str(error)) from None
        if len(data) != size:
            raise FormatError(name, 0, f"{len(data)} bytes where {size} were promised")
        return data

    return hold_bytes(name, size, checked)


def _deflated(body: memoryview, size: int) -> bytes:
    return zlib.decompressobj().decompress(body, size)


def _zstd(body: memoryview, size: int) -> bytes:
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14
    except ImportError:
        zstd = None
    if zstd is not None:
        content: bytes = zstd.ZstdDecompressor().decompress(bytes(body), size)
        return content
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise FormatError("zstd", 0, "compressed with zstd: needs Python 3.14 or the package zstandard") from None
    read: bytes = zstandard.ZstdDecompressor().stream_reader(bytes(body)).read(size)
    return read
