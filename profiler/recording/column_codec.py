"""Codec for columns of numbers: the data of a window of samples, or of a block of items.

The data is the zlib-compressed sequence of the columns. Each column begins with its width in bytes (one byte) and its
base (a signed 64-bit little-endian number). Then follows each row's number minus the base, unsigned, with that width,
in planes: first the lowest bytes of all rows, then the next ones. Width 0: all numbers equal the base. Width 255: the
column is unknown for all rows. Texts may follow the columns.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError

I64 = npt.NDArray[np.int64]

_HEAD = struct.Struct("<Bq")
_NOT_KNOWN = 255
_LEVEL = 6


def pack_columns(columns: Sequence[I64 | None], texts: bytes = b"") -> bytes:
    """Encode columns of integers as compressed bytes.

    Args:
        columns: Each of shape (n,), None if it is unknown for all rows.
        texts: Data that follows the columns.
    """
    parts = []
    for column in columns:
        if column is None:
            parts.append(_HEAD.pack(_NOT_KNOWN, 0))
            continue
        base = int(column.min()) if len(column) else 0
        above = (column - base).view(np.uint64)
        width = (int(above.max()).bit_length() + 7) // 8 if len(column) else 0
        planes = above.astype("<u8").view(np.uint8).reshape(len(column), 8)[:, :width].T
        parts += [_HEAD.pack(width, base), planes.tobytes()]
    return zlib.compress(b"".join([*parts, texts]), _LEVEL)


def unpack_columns(data: bytes, rows: int, columns: int) -> list[I64 | None]:
    """Decode columns of integers that pack_columns() encoded without texts.

    Raises:
        FormatError: The data is invalid.
    """
    found, _ = unpack_texts(data, rows, columns, 0)
    return found


def unpack_known(data: bytes, rows: int, columns: int) -> list[I64]:
    """Decode columns of integers, all of which must be known.

    Raises:
        FormatError: The data is invalid, or a column is unknown.
    """
    return require_known(unpack_columns(data, rows, columns))


def require_known(columns: list[I64 | None]) -> list[I64]:
    """Return the columns of a recording file, all of which must be known.

    Raises:
        FormatError: A column is unknown.
    """
    given = [column for column in columns if column is not None]
    if len(given) != len(columns):
        raise FormatError("data", 0, "a column that each row has is missing")
    return given


def unpack_texts(data: bytes, rows: int, columns: int, most_text: int) -> tuple[list[I64 | None], bytes]:
    """Decode columns and texts that pack_columns() encoded.

    Args:
        data: The encoded data.
        rows: Number of rows.
        columns: Number of columns.
        most_text: Maximum number of bytes of texts.

    Raises:
        FormatError: The data is invalid.
    """
    raw = _inflated(data, columns * (_HEAD.size + 8 * rows) + most_text)
    found: list[I64 | None] = []
    at = 0
    for _ in range(columns):
        if len(raw) - at < _HEAD.size:
            raise FormatError("data", at, "a column is missing")
        width, base = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        if width == _NOT_KNOWN:
            found.append(None)
            continue
        if width > 8 or len(raw) - at < width * rows:
            raise FormatError("data", at, f"a column of {rows} numbers is cut short")
        above = np.zeros((rows, 8), np.uint8)
        above[:, :width] = np.frombuffer(raw, np.uint8, width * rows, at).reshape(width, rows).T
        found.append((above.view("<u8").ravel().astype(np.uint64) + np.uint64(base & (1 << 64) - 1)).view(np.int64))
        at += width * rows
    if len(raw) - at > most_text:
        raise FormatError("data", at, "bytes behind the last column")
    return found, raw[at:]


def _inflated(data: bytes, most: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, most + 1)
    except zlib.error as error:
        raise FormatError("data", 0, f"the data are broken: {error}") from None
    if len(raw) > most or not inflate.eof or inflate.unused_data:
        raise FormatError("data", 0, "longer or shorter than they may be")
    return raw
