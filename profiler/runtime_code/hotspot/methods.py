"""Java methods of a process: names, source files, lines, and the scopes of compiled code.

A method's name consists of the class with dots and the method: `java.util.HashMap.put`. Numbers and addresses that the
virtual machine appends to the classes of lambdas and other hidden classes are left out.

The places of a compiled method's debugging information (nmethod.hpp) differ between versions.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.runtime_code.hotspot.code_cache import Blob
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs

MAX_SYMBOL = 4096
"""Maximum length in bytes of a Java name (class, method or file) that is read."""
MAX_LINES = 1 << 16
"""Maximum number of entries of a Java method's line table; a method has at most 65,535 bytes of bytecode."""
MAX_DEPTH = 128
"""Maximum number of Java methods that are inlined into one another."""
MAX_METHODS = 1 << 16

_HIDDEN = re.compile(r"(\$\$Lambda)(?:\$\d+)?(?:[/+.]0x[0-9a-f]+|/\d+)?|[/+.](?:0x[0-9a-f]+|\d+)(?=$|\$)")
"""Pattern of the part of a Java class name that tells hidden classes apart: `$$Lambda$14+0x0000000800c03000`,
`+0x0000000800c00400`.
"""


@dataclass(frozen=True, slots=True)
class JavaMethod:
    """A Java method, with its class and its line table.

    Attributes:
        name: Names of class and method, such as java.util.HashMap.put.
        file: Name of the source file without a folder, "" if unknown.
        bytecode: Address of the method's first bytecode.
        size: Size of the method's bytecode in bytes.
        lines: (bytecode index, line), ascending, empty if unknown.
    """

    name: str
    file: str
    bytecode: int
    size: int
    lines: tuple[tuple[int, int], ...]

    def line_at(self, index: int) -> int:
        """Return the source line of the Java bytecode at an index, or 0 if it is unknown."""
        at = bisect_right(self.lines, (max(index, 0), 1 << 32)) - 1
        return self.lines[at][1] if at >= 0 else 0


def show_class(name: str) -> str:
    """Convert a class name from the JVM's notation (java/util/Map) to that of Java programmers (java.util.Map)."""
    return _HIDDEN.sub(lambda found: found[1] or "", name).replace("/", ".")


class Methods:
    """A reader of the Java methods of one process, which caches them until clear()."""

    def __init__(self, memory: VmMemory, structs: VmStructs) -> None:
        """Find the layout of HotSpot's methods.

        Raises:
            FormatError: The layout is not known.
        """
        self._memory, self._structs = memory, structs
        offset = structs.offset
        self._const_method = offset(("Method", "_constMethod"))
        self._const_size = structs.size("ConstMethod")
        names = ("ConstMethod::_has_linenumber_table", "ConstMethodFlags::_misc_has_linenumber_table")
        self._has_lines = next((structs.ints[name] for name in names if name in structs.ints), 1)
        self._pool_size = structs.size("ConstantPool")
        self._holder = offset(("ConstantPool", "_pool_holder"))
        self._klass_name = offset(("Klass", "_name"))
        self._file_in_pool = structs.offsets.get(("ConstantPool", "_source_file_name_index"))
        self._file_in_class = structs.offsets.get(("InstanceKlass", "_source_file_name_index"))
        self._length = offset(("Symbol", "_length"))
        self._body = offset(("Symbol", "_body"), ("Symbol", "_body[0]"))
        self.version = _find_major_version(memory, structs)
        self.excludes_zero = self.version >= 20
        self._known: dict[int, JavaMethod | None] = {}

    def clear(self) -> None:
        """Forget all Java methods, because classes may have been unloaded."""
        self._known.clear()

    def find(self, avma: int) -> JavaMethod | None:
        """Return the Java method whose Method structure is at an address, or None if none is readable there."""
        if avma not in self._known:
            if len(self._known) >= MAX_METHODS:
                self._known.clear()
            try:
                self._known[avma] = self._read(avma)
            except FormatError:
                self._known[avma] = None
        return self._known[avma]

    def _read(self, avma: int) -> JavaMethod:
        memory = self._memory
        const = memory.word(avma + self._const_method)
        header = memory.read(const, self._const_size)
        unpack = self._structs.unpack
        pool = unpack(header, "Q", ("ConstMethod", "_constants"))
        size, name_index = (unpack(header, "H", ("ConstMethod", name)) for name in ("_code_size", "_name_index"))
        flags = unpack(header, "H", ("ConstMethod", "_flags"), ("ConstMethod", "_flags._flags"))
        words = unpack(header, "i", ("ConstMethod", "_constMethod_size"))
        klass = memory.word(pool + self._holder)
        class_name = show_class(self._symbol(memory.word(klass + self._klass_name)))
        name = self._symbol(memory.word(pool + self._pool_size + 8 * name_index))
        lines: tuple[tuple[int, int], ...] = ()
        if flags & self._has_lines:
            rest = min(max(words * 8 - self._const_size - size, 0), 4 * MAX_LINES)
            lines = tuple(self._lines(memory.read(const + self._const_size + size, rest)))
        return JavaMethod(f"{class_name}.{name}", self._file(pool, klass), const + self._const_size, size, lines)

    def _symbol(self, avma: int) -> str:
        length = self._memory.number(avma + self._length, 2)
        if not 0 < length <= MAX_SYMBOL:
            raise FormatError("HotSpot", avma, f"a symbol of {length} bytes")
        text = self._memory.read(avma + self._body, length).decode("utf-8", "backslashreplace")
        if not text.isprintable() or "\\" in text:
            raise FormatError("HotSpot", avma, "a symbol that is not a name")
        return text

    def _file(self, pool: int, klass: int) -> str:
        place = None
        if self._file_in_pool is not None:
            place = pool + self._file_in_pool
        elif self._file_in_class is not None:
            place = klass + self._file_in_class
        try:
            index = self._memory.number(place, 2) if place is not None else 0
            return self._symbol(self._memory.word(pool + self._pool_size + 8 * index)) if index else ""
        except FormatError:
            return ""

    def _lines(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield (bytecode index, line) of each entry of a Java method's compressed line table
        (CompressedLineNumberReadStream).
        """
        found = []
        index = line = at = 0
        for _ in range(MAX_LINES):
            byte = data[at] if at < len(data) else 0
            at += 1
            if byte == 0:
                break
            if byte == 0xFF:
                step, at = read_unsigned5(data, at, self.excludes_zero)
                index += _signed(step)
                step, at = read_unsigned5(data, at, self.excludes_zero)
                line += _signed(step)
            else:
                index += byte >> 3
                line += byte & 7
            found.append((index, line))
        return iter(sorted(found))


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _find_major_version(memory: VmMemory, structs: VmStructs) -> int:
    """Return the feature version of the JDK, such as 17. JDK 8, which states 25 (the version of its virtual machine),
    is recognized by another field.
    """
    key = ("Abstract_VM_Version", "_vm_major_version")
    if key not in structs.statics or ("CodeCache", "_heap") in structs.statics:
        return 8
    return memory.number(structs.statics[key], 4)


def read_unsigned5(data: bytes, at: int, excludes_zero: bool) -> tuple[int, int]:
    """Read a number of one to five bytes (UNSIGNED5): a byte of 192 or more says that another one follows.

    Args:
        data: The bytes.
        at: Index of the number.
        excludes_zero: No byte is 0, as from JDK 20 on.

    Returns:
        The number and the index after it.

    Raises:
        FormatError: The data ends inside the number.
    """
    value = shift = 0
    for _ in range(5):
        if at >= len(data):
            raise FormatError("HotSpot", at, "a number that is cut off")
        byte = data[at]
        at += 1
        value += max(byte - excludes_zero, 0) << shift
        if byte < 192:
            break
        shift += 6
    return value & 0xFFFFFFFF, at


@dataclass(frozen=True, slots=True)
class InlineScopes:
    """The scopes of inlined methods in one method that HotSpot compiled.

    Attributes:
        pcs: Offsets in the code of the points with debugging information, ascending.
        at: For each of these points, the offset of its scope in `data`.
        data: The scopes, compressed.
        metadata: Addresses of methods and classes, to which scopes refer by number, from 1 on.
        excludes_zero: No byte of the compressed data is 0, as from JDK 20 on.
    """

    pcs: tuple[int, ...]
    at: tuple[int, ...]
    data: bytes
    metadata: tuple[int, ...]
    excludes_zero: bool

    def find(self, offset: int) -> list[tuple[int, int]]:
        """Return the Java methods that are active at a lookup pc, the innermost inlined one first.

        Args:
            offset: The lookup pc, relative to the code. The next point after it in `pcs` describes it.

        Returns:
            (address of the Method, bytecode index) of each method; [] if nothing is known.
        """
        return self.read_chain(bisect_right(self.pcs, offset))

    def read_chain(self, place: int) -> list[tuple[int, int]]:
        """Return the Java methods that are active at the point with debugging information that has the index `place` in
        `pcs`, the innermost first.
        """
        found: list[tuple[int, int]] = []
        at = self.at[place] if 0 <= place < len(self.pcs) else 0
        try:
            while at and len(found) < MAX_DEPTH:
                sender, here = read_unsigned5(self.data, at, self.excludes_zero)
                method, here = read_unsigned5(self.data, here, self.excludes_zero)
                index, _ = read_unsigned5(self.data, here, self.excludes_zero)
                if not 0 < method <= len(self.metadata):
                    return []
                found.append((self.metadata[method - 1], index - 1))
                if sender >= at:  # scopes refer to earlier ones
                    break
                at = sender
        except FormatError:
            return []
        return found


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
    """Return the 32-bit field at an offset in each PcDesc, a row of HotSpot's debugging information, as an int32 array.

    Raises:
        FormatError: The offset lies outside the rows.
    """
    if offset + 4 > rows.shape[1]:
        raise FormatError("HotSpot", offset, "a field that lies outside PcDesc")
    return np.ascontiguousarray(rows[:, offset : offset + 4]).view("<i4").ravel()
