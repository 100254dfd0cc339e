"""The debugging information of a compiled method in the process (nmethod.hpp). Its places differ between versions."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.runtime_code.hotspot.blob_cache import Blob
from pyprof.runtime_code.hotspot.methods import InlineScopes
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs

MAX_BYTES = 4 << 20
"""Maximum size in bytes of one part of a Java method's debugging information."""


def read_scopes(memory: VmMemory, structs: VmStructs, blob: Blob, excludes_zero: bool) -> InlineScopes:
    """Read the debugging information of a Java method that HotSpot has compiled.

    Raises:
        FormatError: The information is not readable or not plausible.
    """
    offsets, header = structs.offsets, blob.header

    def number(kind: str, name: str, layout: str = "i") -> int:
        return structs.unpack(header, layout, (kind, name))

    if ("nmethod", "_immutable_data") in offsets:  # JDK 23 and later
        fixed = number("nmethod", "_immutable_data", "Q")
        data_begin = fixed + number("nmethod", "_scopes_data_offset")
        data_end = fixed + number("nmethod", "_immutable_data_size")
        pcs_begin, pcs_end = fixed + number("nmethod", "_scopes_pcs_offset"), data_begin
        if ("CodeBlob", "_mutable_data") in offsets:  # JDK 25 and later
            mutable = number("CodeBlob", "_mutable_data", "Q")
            metadata_begin = mutable + number("CodeBlob", "_relocation_size")
            metadata_end = mutable + number("CodeBlob", "_mutable_data_size")
        else:
            metadata_begin = blob.end + number("nmethod", "_metadata_offset", "H")
            metadata_end = blob.address + number("CodeBlob", "_size")
    else:
        metadata_begin = blob.address + number("nmethod", "_metadata_offset")
        if ("CompiledMethod", "_scopes_data_begin") in offsets:
            data_begin = number("CompiledMethod", "_scopes_data_begin", "Q")
        else:
            data_begin = blob.address + number("nmethod", "_scopes_data_offset")
        metadata_end = data_begin
        data_end = pcs_begin = blob.address + number("nmethod", "_scopes_pcs_offset")
        pcs_end = blob.address + number("nmethod", "_dependencies_offset")

    def part(start: int, end: int) -> bytes:
        if not 0 <= end - start <= MAX_BYTES:
            raise FormatError("HotSpot", start, f"{end - start} bytes of debugging information")
        return memory.read(start, end - start) if end > start else b""

    words = part(metadata_begin, metadata_end)
    table, size = part(pcs_begin, pcs_end), structs.size("PcDesc")
    rows = np.frombuffer(table, np.uint8, len(table) // size * size).reshape(-1, size)
    pcs, at = (_column(rows, structs.offset(("PcDesc", name))) for name in ("_pc_offset", "_scope_decode_offset"))
    order = np.argsort(pcs, kind="stable")
    return InlineScopes(
        tuple(pcs[order].tolist()),
        tuple(at[order].tolist()),
        part(data_begin, data_end),
        struct.unpack(f"<{len(words) // 8}Q", words[: len(words) // 8 * 8]),
        excludes_zero,
    )


def _column(rows: npt.NDArray[np.uint8], offset: int) -> npt.NDArray[np.int32]:
    """Return the 32-bit field at an offset of each row of HotSpot's debugging information.

    Raises:
        FormatError: The offset lies outside the rows.
    """
    if offset + 4 > rows.shape[1]:
        raise FormatError("HotSpot", offset, "a field that lies outside PcDesc")
    return np.ascontiguousarray(rows[:, offset : offset + 4]).view("<i4").ravel()
