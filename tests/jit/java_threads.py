"""Made threads of a Java virtual machine, with Thread objects and their names, as several versions lay them out."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.runtime_code.hotspot.thread_names import JavaThreadNames
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs
from tests.jit.memory import Memory

BASE = 0x7000_0000
NAMES = {41: "a-thread-with-a-long-name-7", 42: "schön-名前", 43: ""}
_KLASSES = BASE + 0x4000
"""Base of compressed class pointers."""
_HEAP = BASE - 0x1000
"""Base of compressed object pointers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of objects and threads in one version of HotSpot, with its options.

    Attributes:
        version: Feature version of the JDK.
        is_compressed: Fields hold object pointers of four bytes (UseCompressedOops).
        has_narrow_classes: Objects hold class pointers of four bytes (UseCompressedClassPointers).
        is_compact: The class pointer is part of an object's mark word (UseCompactObjectHeaders).
        pointer_shift: Bits of the colour of ZGC's pointers.
    """

    version: int
    is_compressed: bool = True
    has_narrow_classes: bool = True
    is_compact: bool = False
    pointer_shift: int = 0

    @property
    def header(self) -> int:
        return 8 if self.is_compact else 12 if self.has_narrow_classes else 16


LAYOUTS = {
    "8": Layout(8),
    "11": Layout(11),
    "17": Layout(17),
    "17 without compression": Layout(17, is_compressed=False, has_narrow_classes=False),
    "21": Layout(21),
    "21 with ZGC": Layout(21, is_compressed=False, pointer_shift=13),
    "25": Layout(25),
    "25 without compression": Layout(25, is_compressed=False, has_narrow_classes=False),
    "25 with compact headers": Layout(25, is_compact=True),
}


class _Image:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.data = bytearray(0x6000)
        self.next = BASE + 0x100
        self.offsets: dict[tuple[str, str], int] = {}
        self.statics: dict[tuple[str, str], int] = {}

    def put(self, avma: int, content: bytes) -> int:
        self.data[avma - BASE : avma - BASE + len(content)] = content
        return avma

    def add(self, content: bytes, align: int = 16) -> int:
        avma = self.next + -self.next % align
        self.next = avma + len(content)
        return self.put(avma, content)

    def word(self, avma: int, word: int) -> None:
        self.put(avma, struct.pack("<Q", word))

    def symbol(self, text: str) -> int:
        return self.add(struct.pack("<IH", 1, len(text)) + text.encode())

    def klass(self, at: int, name: str, fields: list[tuple[str, str, int]], parent: int = 0) -> int:
        """Add a class at an offset from the base of classes.

        Args:
            at: The offset.
            name: Name of the class.
            fields: Name, type and offset of its fields.
            parent: Address of its superclass.
        """
        symbols = [self.symbol(text) for field in fields for text in field[:2]]
        pool = self.add(bytes(16) + struct.pack(f"<{len(symbols)}Q", *symbols))
        if self.layout.version >= 21:
            stream = b"".join(
                bytes((1 + 2 * n, 2 + 2 * n, 1 + each[2], 1, 5 * (n == 0) + 1, *(8, 9) * (n == 0)))
                for n, each in enumerate(fields)
            )  # the first has an initial value and is generic
            content = bytes((len(fields) + 1, 1)) + stream
            listed = self.add(struct.pack("<i", len(content)) + content)
        else:
            rows = [
                (0, 2 * n, 2 * n + 1, 0, (each[2] << 2 | 1) & 0xFFFF, each[2] >> 14) for n, each in enumerate(fields)
            ]
            listed = self.add(struct.pack("<i", 6 * len(rows)) + b"".join(struct.pack("<6H", *row) for row in rows))
        words = struct.pack("<4Q", self.symbol(name), parent, pool, listed)
        return self.put(_KLASSES + at, words)

    def instance(self, klass: int, size: int) -> int:
        """Add an object without fields. `size` counts from its header on."""
        narrow = klass - _KLASSES
        layout = self.layout
        mark, klass_word = (narrow << 42, b"") if layout.is_compact else (1, struct.pack("<I", narrow))
        if not layout.has_narrow_classes:
            klass_word = struct.pack("<Q", klass)
        return self.add(struct.pack("<Q", mark) + klass_word + bytes(size))

    def refer(self, field: int, target: int) -> None:
        if self.layout.is_compressed:
            self.put(field, struct.pack("<I", target - _HEAP >> 3))
        else:
            self.word(field, target << self.layout.pointer_shift)

    def string(self, klass: int, text: str) -> int:
        layout = self.layout
        is_wide = layout.version < 9 or not text.isascii()
        data = text.encode("utf-16-le" if is_wide else "latin-1")
        length = len(data) // 2 if layout.version < 9 else len(data)
        gap = 0 if layout.version >= 23 else -(layout.header + 4) % 8
        array = self.instance(klass, 4 + gap + len(data))
        self.put(array + layout.header, struct.pack("<i", length) + bytes(gap) + data)
        found = self.instance(klass, 32)
        self.refer(found + 24, array)
        self.put(found + 20, bytes((is_wide,)))
        return found


def image(layout: Layout) -> tuple[bytes, VmStructs]:
    """Return the memory from BASE on, and the description of its layout."""
    made = _Image(layout)
    text = [("value", "[C" if layout.version < 9 else "[B", 24), ("hash", "I", 16), ("coder", "B", 20)]
    string = made.klass(0x100, "java/lang/String", text)
    thread = made.klass(
        0x200, "java/lang/Thread", [("eetop", "J", 16), ("name", "I", 60), ("name", "Ljava/lang/String;", 40)]
    )
    worker = made.klass(0x300, "a/Worker", [("name", "Ljava/lang/String;", 64)], thread)

    threads = []
    for number, (tid, name) in enumerate(NAMES.items()):
        found = made.instance((thread, worker)[number % 2], 80)
        made.refer(found + 40, made.string(string, name))
        word = found << layout.pointer_shift
        handle = made.add(struct.pack("<Q", word)) if layout.version >= 16 else word
        system = made.add(struct.pack("<2I", 0, tid))
        threads.append(made.add(struct.pack("<3Q", system, handle, 0)))
    made.offsets |= {("Thread" if layout.version in (8, 25) else "JavaThread", "_osthread"): 0}
    made.offsets |= {("JavaThread", "_threadObj"): 8, ("OSThread", "_thread_id"): 4}
    if layout.version < 10:
        made.offsets[("JavaThread", "_next")] = 16
        for this, following in pairwise(threads):
            made.word(this + 16, following)
        made.statics[("Threads", "_thread_list")] = made.add(struct.pack("<Q", threads[0]))
    else:
        made.offsets |= {("ThreadsList", "_length"): 4, ("ThreadsList", "_threads"): 8}
        listed = made.add(struct.pack(f"<{len(threads)}Q", *threads))
        head = made.add(struct.pack("<2IQ", 0, len(threads), listed))
        made.statics[("ThreadsSMRSupport", "_java_thread_list")] = made.add(struct.pack("<Q", head))

    made.offsets |= {("Klass", "_name"): 0, ("Klass", "_super"): 8, ("InstanceKlass", "_constants"): 16}
    made.offsets |= {("Symbol", "_length"): 4, ("Symbol", "_body"): 6}
    key = "_fieldinfo_stream" if layout.version >= 21 else "_fields"
    made.offsets |= {("InstanceKlass", key): 24, ("Array<u1>", "_data"): 4, ("Array<u2>", "_data"): 4}
    made.offsets |= {("oopDesc", "_metadata._compressed_klass"): 8, ("oopDesc", "_metadata._klass"): 8}

    flags = {
        "PrintFlagsFinal": False,
        "UseCompressedOops": layout.is_compressed,
        "UseCompressedClassPointers": layout.has_narrow_classes,
        "UseCompactObjectHeaders": layout.is_compact,
        "UseZGC": layout.pointer_shift > 0,
    }
    kind = "Flag" if layout.version == 8 else "JVMFlag"
    rows = [(made.add(bytes((value,))), made.add(name.encode() + b"\0")) for name, value in flags.items()]
    first = made.add(b"".join(struct.pack("<2Q", *row) for row in rows))
    made.offsets |= {(kind, "_addr"): 0, (kind, "_name"): 8}
    made.statics[(kind, "flags")] = made.add(struct.pack("<Q", first))
    made.statics[(kind, "numFlags")] = made.add(struct.pack("<Q", len(rows)))

    names = ("_narrow_oop._{}", "_narrow_klass._{}") if layout.version < 23 else ("_{}", "_{}")
    kinds = ("CompressedOops", "CompressedKlassPointers") if layout.version > 12 else ("Universe", "Universe")
    for place, name, base, shift in zip(kinds, names, (_HEAP, _KLASSES), (3, 0), strict=True):
        made.statics[(place, name.format("base"))] = made.add(struct.pack("<Q", base))
        made.statics[(place, name.format("shift"))] = made.add(struct.pack("<I", shift))
    if layout.version >= 21:
        made.offsets[("ZGlobalsForVMStructs", "_ZPointerLoadShift")] = 8
        values = made.add(struct.pack("<2Q", 0, made.add(struct.pack("<Q", layout.pointer_shift))))
        made.statics[("ZGlobalsForVMStructs", "_instance_p")] = made.add(struct.pack("<Q", values))
    assert made.next < _KLASSES
    return bytes(made.data), VmStructs(made.offsets, made.statics, {kind: 16, "ConstantPool": 16}, {})


def open_names(data: bytes, structs: VmStructs, version: int) -> JavaThreadNames:
    """Open the threads in an image.

    Raises:
        FormatError: They cannot be read.
    """
    memory = Memory()
    memory.put(BASE, data)
    return JavaThreadNames(VmMemory(memory.read), structs, version)


def exhaust(data: bytes) -> None:
    """Read the names of threads in images of all layouts, of which the first bytes of some data may be a part."""
    for layout in LAYOUTS.values():
        whole, structs = image(layout)
        with suppress(FormatError):
            open_names(data[: len(whole)].ljust(len(whole), b"\0"), structs, layout.version).read_names()
