"""The layout of HotSpot's data structures, which libjvm.so exports for debuggers (vmStructs.hpp).

Three arrays name the fields, the types and the constants of the running version. `gHotSpotVMStructs` and two similar
symbols are words that hold the address of an array. Further exported words state the layout of an array's entries.

VmMemory reads the memory of the Java process with limits. Each read may fail, and each value may be wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import ReadMemory

MAX_ENTRIES = 1 << 14
"""Maximum number of entries of an array in HotSpot's vmStructs. JDK 25 has 2,900 fields."""
MAX_STRIDE = 256
"""Maximum size of an entry of HotSpot's vmStructs in bytes."""
MAX_NAME = 256
_BLOCK = 1 << 14
_MAX_BLOCKS = 1 << 10
_PAGE = 1 << 12
MAX_PAGES = 1 << 12
"""Maximum number of pages of a Java process's memory in the cache of VmMemory. A full cache is cleared."""

_FIELD_WORDS = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
_TYPE_WORDS = ("TypeName", "Size")
_CONSTANT_WORDS = ("Name", "Value")

_LIMIT = 1 << 63


def _names(array: str, entry: str, words: tuple[str, ...]) -> tuple[bytes, ...]:
    layout = (f"gHotSpotVM{entry}Entry{word}Offset" for word in words)
    return tuple(name.encode() for name in (f"gHotSpotVM{array}", f"gHotSpotVM{entry}EntryArrayStride", *layout))


FIELDS = _names("Structs", "Struct", _FIELD_WORDS)
TYPES = _names("Types", "Type", _TYPE_WORDS)
INTS = _names("IntConstants", "IntConstant", _CONSTANT_WORDS)
SYMBOLS = FIELDS + TYPES + INTS
"""The symbols of libjvm.so that find_structs() needs. For each array, they give its address, the size of an entry, and
the offsets of words in an entry.
"""


@dataclass(frozen=True, slots=True)
class VmStructs:
    """The layout of one Java virtual machine's data.

    Attributes:
        offsets: Offset of each field by (type, field).
        statics: Address in the process of each static field by (type, field).
        sizes: Size of each type in bytes.
        ints: Integer constants.
    """

    offsets: Mapping[tuple[str, str], int]
    statics: Mapping[tuple[str, str], int]
    sizes: Mapping[str, int]
    ints: Mapping[str, int]

    def offset(self, *names: tuple[str, str]) -> int:
        """Return the offset of the first of these fields of HotSpot's structures that the process's version has.

        Raises:
            FormatError: The version has none of them.
        """
        return _first(self.offsets, names)

    def static(self, *names: tuple[str, str]) -> int:
        """Return the address of the first of these static fields of HotSpot that the process's version has.

        Raises:
            FormatError: The version has none of them.
        """
        return _first(self.statics, names)

    def unpack(self, data: bytes, layout: str, *names: tuple[str, str]) -> int:
        """Return the value of the first of these fields that HotSpot's version has, from the bytes of its structure.

        Args:
            data: Bytes of the structure.
            layout: Type of the field in the notation of struct, without a byte order.
            names: Names of the fields.

        Raises:
            FormatError: The process's version has none of the fields, or the field lies outside the structure.
        """
        offset = self.offset(*names)
        if offset + struct.calcsize(f"<{layout}") > len(data):
            raise FormatError("HotSpot", offset, f"{'::'.join(names[0])} lies outside its structure")
        return int(struct.unpack_from(f"<{layout}", data, offset)[0])

    def size(self, name: str) -> int:
        """Return the size of a HotSpot type in bytes.

        Raises:
            FormatError: The type is unknown, or its size is not plausible.
        """
        size = self.sizes.get(name, 0)
        if not 0 < size < 1 << 16:
            raise FormatError("HotSpot", 0, f"the size of {name} is not known")
        return size


def _first(known: Mapping[tuple[str, str], int], names: tuple[tuple[str, str], ...]) -> int:
    for name in names:
        if name in known:
            return known[name]
    raise FormatError("HotSpot", 0, f"the layout of {'::'.join(names[0])} is not known")


class _Blocks:
    """Memory of a Java process, read in blocks: thousands of short names lie close together."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._known: dict[int, bytes] = {}

    def read(self, avma: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = avma + len(data)
            block = self._block(at // _BLOCK)
            part = block[at % _BLOCK : at % _BLOCK + size - len(data)]
            if not part:
                raise FormatError("HotSpot", avma, "the description of its data is not readable")
            data += part
        return data

    def word(self, avma: int) -> int:
        return int.from_bytes(self.read(avma, 8), "little")

    def name(self, avma: int) -> str:
        """Return the string at an address of the Java process; "" for the null pointer."""
        if not avma:
            return ""
        at = avma % _BLOCK
        text = self._block(avma // _BLOCK)[at : at + MAX_NAME]
        if b"\0" not in text:
            text += self._block(avma // _BLOCK + 1)[: MAX_NAME - len(text)] if at + len(text) == _BLOCK else b""
        return text.partition(b"\0")[0].decode("ascii", "backslashreplace")

    def _block(self, number: int) -> bytes:
        block = self._known.get(number)
        if block is None:
            if len(self._known) >= _MAX_BLOCKS:
                raise FormatError("HotSpot", number * _BLOCK, "the description of its data is too large")
            usable = 0 <= number < 1 << 64 - _BLOCK.bit_length() + 1
            block = self._known[number] = self._read(number * _BLOCK, _BLOCK) if usable else b""
        return block


def _entries(blocks: _Blocks, symbols: Mapping[bytes, int], names: tuple[bytes, ...]) -> Iterator[list[int]]:
    """Yield the addresses of the words in each entry of a vmStructs array, in the order of `names`. The first word is a
    name.
    """
    array, stride, *offsets = (blocks.word(symbols[name]) for name in names)
    if not 0 < stride <= MAX_STRIDE or max(offsets) >= stride:
        raise FormatError("HotSpot", array, f"entries of {stride} bytes")
    for number in range(MAX_ENTRIES):
        words = [array + number * stride + offset for offset in offsets]
        if not blocks.word(words[0]):
            return
        yield words
    raise FormatError("HotSpot", array, "an array of descriptions has no end")


def find_structs(read: ReadMemory, symbols: Mapping[bytes, int]) -> VmStructs:
    """Read the layout of HotSpot's data from the description in the process.

    Args:
        read: Reads the memory of the process.
        symbols: Addresses in the process of SYMBOLS.

    Raises:
        FormatError: The description is not readable or not plausible.
    """
    if not set(SYMBOLS) <= symbols.keys():
        raise FormatError("HotSpot", 0, "it does not describe its data")
    blocks = _Blocks(read)
    offsets, statics = {}, {}
    for type_name, field, is_static, offset, address in _entries(blocks, symbols, FIELDS):
        key = (blocks.name(blocks.word(type_name)), blocks.name(blocks.word(field)))
        if struct.unpack("<i", blocks.read(is_static, 4))[0]:
            statics[key] = blocks.word(address)
        elif (at := blocks.word(offset)) < 1 << 20:
            offsets[key] = at
    sizes = {blocks.name(blocks.word(name)): blocks.word(size) for name, size in _entries(blocks, symbols, TYPES)}
    ints = {
        blocks.name(blocks.word(name)): struct.unpack("<i", blocks.read(value, 4))[0]
        for name, value in _entries(blocks, symbols, INTS)
    }
    return VmStructs(offsets, statics, sizes, ints)


class VmMemory:
    """A reader of little-endian values in one Java process's memory.

    It reads whole pages and caches them until renew() is called, because a method's name is spread over a dozen small
    structures that lie close to those of other methods.
    """

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def renew(self, read: ReadMemory) -> None:
        """Clear the cache of the Java process's memory, and set the function that reads it: that of the current address
        space.
        """
        self._read = read
        self._pages.clear()

    def _part(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of a Java process's memory, or as many as are readable."""
        if not 0 < avma < _LIMIT - size:
            return b""
        at = avma % _PAGE
        if at + size <= _PAGE:
            page = self._pages.get(avma - at)
            if page is None:
                if len(self._pages) >= MAX_PAGES:
                    self._pages.clear()
                page = self._pages[avma - at] = self._read(avma - at, _PAGE)
            if len(page) >= at + size:
                return page[at : at + size]
        return self._read(avma, size)

    def read(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of a Java process's memory.

        Raises:
            FormatError: The bytes are not readable.
        """
        data = self._part(avma, size)
        if len(data) != size:
            raise FormatError("HotSpot", avma, f"{size} bytes at {avma:#x} are not readable")
        return data

    def number(self, avma: int, size: int, signed: bool = False) -> int:
        """Return a number of `size` bytes at an address in a Java process.

        Raises:
            FormatError: The number is not readable.
        """
        return int.from_bytes(self.read(avma, size), "little", signed=signed)

    def word(self, avma: int) -> int:
        """Return the address-sized word at an address in a Java process.

        Raises:
            FormatError: The word is not readable.
        """
        return self.number(avma, 8)

    def text(self, avma: int, max_bytes: int = 256) -> str:
        """Return the text at an address in a Java process up to its null byte, "" if it is not readable."""
        data = self._part(avma, max_bytes)
        return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")


MAX_FLAGS = 1 << 13
"""Maximum number of HotSpot's options. JDK 25 has about 1,500."""


def read_flag(memory: VmMemory, structs: VmStructs, name: str) -> bool:
    """Return True if a Boolean option of HotSpot is set; False if it is not or cannot be read."""
    try:
        kind = "JVMFlag" if ("JVMFlag", "flags") in structs.statics else "Flag"  # Flag: JDK 8
        at, size = memory.word(structs.static((kind, "flags"))), structs.size(kind)
        count = min(memory.word(structs.static((kind, "numFlags"))), MAX_FLAGS)
        name_at, value_at = structs.offset((kind, "_name")), structs.offset((kind, "_addr"))
        for flag in range(at, at + count * size, size):
            text = memory.word(flag + name_at)
            if text and memory.text(text) == name:
                return memory.number(memory.word(flag + value_at), 1) != 0
    except FormatError:
        pass
    return False
