"""Names that Java code gave to the threads of a Java virtual machine (HotSpot), read from its Thread objects.

The kernel keeps only 15 bytes of a thread's first name. The reader follows the list of threads to a JavaThread, its
object of class Thread, the String in the field `name`, and the array of its characters. The garbage collector moves
these objects meanwhile. So the reader compares the class of each object before it reads a field, and leaves out names
for which that fails.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from pyprof.errors import FormatError
from pyprof.runtime_code.hotspot.methods import read_unsigned5
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs

MAX_THREADS = 1 << 14
"""Maximum number of Java threads whose names are read."""
MAX_LENGTH = 256
"""Maximum number of characters of a Java thread's name."""
MAX_FLAGS = 1 << 12
"""Maximum number of options of a Java virtual machine. JDK 25 has about 1,500."""
MAX_FIELDS = 1 << 10
"""Maximum number of fields of a Java class that are searched for a field."""
MAX_SUPERCLASSES = 64
MAX_READ_NS = 100_000_000
"""Maximum time in nanoseconds for one reading of all names. The list of threads may be that of a hostile process."""
THREAD, STRING, TEXT = "java/lang/Thread", "java/lang/String", "Ljava/lang/String;"
_FLAGS = ("UseCompressedOops", "UseCompressedClassPointers", "UseCompactObjectHeaders", "UseZGC")
_INITIALIZED, _GENERIC, _CONTENDED = 1, 4, 16
"""Flags of a field in the compressed field list of a Java class, JDK 21 and later (fieldInfo.hpp). Each says that a
further number follows.
"""


class JavaThreadNames:
    """A reader of the names of one Java virtual machine's threads."""

    def __init__(self, memory: VmMemory, structs: VmStructs, version: int) -> None:
        """Find the layout of Java's threads and objects.

        Args:
            memory: Memory of the process.
            structs: The layout of the virtual machine's data.
            version: Feature version of the JDK, such as 17.

        Raises:
            FormatError: The layout is not readable or not known.
        """
        self._memory, self._structs, self._version = memory, structs, version
        offset = structs.offset
        self._os_thread = offset(("JavaThread", "_osthread"), ("Thread", "_osthread"))
        self._thread_id = offset(("OSThread", "_thread_id"))
        self._object = offset(("JavaThread", "_threadObj"))
        self._super = offset(("Klass", "_super"))
        self._klass_name = offset(("Klass", "_name"))
        self._constants = offset(("InstanceKlass", "_constants"))
        self._length, self._body = offset(("Symbol", "_length")), offset(("Symbol", "_body"), ("Symbol", "_body[0]"))
        self._pool_size = structs.size("ConstantPool")
        flags = self._read_flags()
        self._is_compressed = bool(flags.get("UseCompressedOops", 1))
        self._has_narrow_classes = bool(flags.get("UseCompressedClassPointers", 1))
        self._is_compact = bool(flags.get("UseCompactObjectHeaders", 0))
        self._oop_base, self._oop_shift = self._encoding("CompressedOops", "_narrow_oop")
        self._klass_base, self._klass_shift = self._encoding("CompressedKlassPointers", "_narrow_klass")
        self._pointer_shift = self._read_pointer_shift() if flags.get("UseZGC") else 0
        self._fields: dict[tuple[int, str, str], int] = {}

    def read_names(self) -> dict[int, str]:
        """Return the names of the Java threads by tid, as the process's own pid namespace numbers them."""
        names: dict[int, str] = {}
        until_ns = time.monotonic_ns() + MAX_READ_NS
        try:
            for thread in self._list_threads():
                if time.monotonic_ns() > until_ns:
                    break
                try:
                    tid, name = self._read_thread(thread)
                except FormatError:
                    continue
                if name:
                    names[tid] = name
        except FormatError:
            pass
        return names

    def _list_threads(self) -> Iterator[int]:
        """Yield the address of each JavaThread.

        Raises:
            FormatError: The list is not readable or not known.
        """
        memory, structs = self._memory, self._structs
        if ("ThreadsSMRSupport", "_java_thread_list") not in structs.statics:  # JDK 8 and 9
            following = structs.offset(("JavaThread", "_next"))
            thread = memory.word(structs.static(("Threads", "_thread_list")))
            for _ in range(MAX_THREADS):
                if not thread:
                    return
                yield thread
                thread = memory.word(thread + following)
            return
        listed = memory.word(structs.static(("ThreadsSMRSupport", "_java_thread_list")))
        length = memory.number(listed + structs.offset(("ThreadsList", "_length")), 4)
        first = memory.word(listed + structs.offset(("ThreadsList", "_threads")))
        for at in range(min(length, MAX_THREADS)):
            yield memory.word(first + 8 * at)

    def _read_thread(self, thread: int) -> tuple[int, str]:
        memory = self._memory
        tid = memory.number(memory.word(thread + self._os_thread) + self._thread_id, 4)
        handle = memory.word(thread + self._object)
        # From JDK 16 on the field is an OopHandle.
        thread_object = self._pointer(memory.word(handle) if self._version >= 16 else handle)
        klass = self._klass_of(thread_object)
        for _ in range(MAX_SUPERCLASSES):
            if self._class_name(klass) == THREAD:
                break
            klass = memory.word(klass + self._super)
        text = self._reference(thread_object + self._find_field(klass, "name", TEXT))
        return tid, self._read_string(text) if text else ""

    def _read_string(self, text: int) -> str:
        memory = self._memory
        klass = self._klass_of(text)
        if self._class_name(klass) != STRING:
            raise FormatError("HotSpot", text, "an object that is no String")
        has_bytes = self._version >= 9
        characters = self._reference(text + self._find_field(klass, "value", "[B" if has_bytes else "[C"))
        is_wide = not has_bytes or memory.number(text + self._find_field(klass, "coder", "B"), 1) == 1
        length_at = 8 if self._is_compact else 12 if self._has_narrow_classes else 16
        length = memory.number(characters + length_at, 4)
        start = characters + length_at + 4 + (0 if self._version >= 23 else -(length_at + 4) % 8)
        size = min(length if has_bytes else 2 * length, 2 * MAX_LENGTH if is_wide else MAX_LENGTH)
        data = memory.read(start, size) if size else b""
        return data.decode("utf-16-le" if is_wide else "latin-1", "replace")

    # Objects and their classes.

    def _pointer(self, word: int) -> int:
        """Return the address of the Java object to which a word outside of the heap refers."""
        return word >> self._pointer_shift

    def _reference(self, field: int) -> int:
        """Return the address of the Java object to which a field of an object refers, 0 if the field is null."""
        if not self._is_compressed:
            return self._pointer(self._memory.word(field))
        narrow = self._memory.number(field, 4)
        return self._oop_base + (narrow << self._oop_shift) if narrow else 0

    def _klass_of(self, avma: int) -> int:
        """Return the address of a Java object's class."""
        memory, structs = self._memory, self._structs
        if self._is_compact:
            narrow = memory.word(avma) >> structs.ints.get("markWord::klass_shift", 42)
        elif self._has_narrow_classes:
            narrow = memory.number(avma + structs.offset(("oopDesc", "_metadata._compressed_klass")), 4)
        else:
            return memory.word(avma + structs.offset(("oopDesc", "_metadata._klass")))
        return self._klass_base + (narrow << self._klass_shift)

    def _class_name(self, klass: int) -> str:
        return self._symbol(self._memory.word(klass + self._klass_name))

    def _symbol(self, avma: int) -> str:
        length = min(self._memory.number(avma + self._length, 2), MAX_LENGTH)
        return self._memory.read(avma + self._body, length).decode("utf-8", "backslashreplace") if length else ""

    def _find_field(self, klass: int, name: str, kind: str) -> int:
        """Return the offset of a field in objects of a Java class, by its name and type.

        Raises:
            FormatError: The class has no such field.
        """
        key = (klass, name, kind)
        if key not in self._fields:
            pool = self._memory.word(klass + self._constants) + self._pool_size
            for name_index, kind_index, offset in self._list_fields(klass):
                names = (self._memory.word(pool + 8 * index) for index in (name_index, kind_index))
                if [self._symbol(each) for each in names] == [name, kind]:
                    self._fields[key] = offset
                    break
            else:
                raise FormatError("HotSpot", klass, f"a class without the field {name}")
        return self._fields[key]

    def _list_fields(self, klass: int) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the name, index of the type, offset) of each field of a Java class."""
        memory, structs = self._memory, self._structs
        if ("InstanceKlass", "_fieldinfo_stream") in structs.offsets:
            array = memory.word(klass + structs.offset(("InstanceKlass", "_fieldinfo_stream")))
            size = min(memory.number(array, 4), 16 * MAX_FIELDS)
            data = memory.read(array + structs.offset(("Array<u1>", "_data")), size)
            count, at = read_unsigned5(data, 0, excludes_zero=True)
            _, at = read_unsigned5(data, at, excludes_zero=True)
            for _ in range(min(count, MAX_FIELDS)):
                values = []
                for _ in range(5):
                    value, at = read_unsigned5(data, at, excludes_zero=True)
                    values.append(value)
                for _ in range(sum(bool(values[4] & bit) for bit in (_INITIALIZED, _GENERIC, _CONTENDED))):
                    _, at = read_unsigned5(data, at, excludes_zero=True)
                yield values[0], values[1], values[2]
            return
        array = memory.word(klass + structs.offset(("InstanceKlass", "_fields")))
        count = min(memory.number(array, 4) // 6, MAX_FIELDS)
        data = memory.read(array + structs.offset(("Array<u2>", "_data")), 12 * count)
        for _, name, kind, _, low, high in struct.iter_unpack("<6H", data):
            yield name, kind, (high << 16 | low) >> 2

    # Options and encodings of the virtual machine.

    def _read_flags(self) -> dict[str, int]:
        """Return the values of the virtual machine's options that decide how Java objects are laid out."""
        memory, structs = self._memory, self._structs
        kind = "JVMFlag" if ("JVMFlag", "flags") in structs.statics else "Flag"
        first, size = memory.word(structs.static((kind, "flags"))), structs.size(kind)
        count = min(memory.word(structs.static((kind, "numFlags"))), MAX_FLAGS)
        name_at, value_at = structs.offset((kind, "_name")), structs.offset((kind, "_addr"))
        found: dict[str, int] = {}
        for flag in range(first, first + size * count, size):
            name = memory.word(flag + name_at)
            if name and (text := memory.text(name, 32)) in _FLAGS:
                found[text] = memory.number(memory.word(flag + value_at), 1)
        return found

    def _encoding(self, kind: str, earlier: str) -> tuple[int, int]:
        """Return (base, shift) by which compressed pointers to Java objects or classes are decoded."""
        places = ((kind, "{}"), (kind, f"{earlier}.{{}}"), ("Universe", f"{earlier}.{{}}"))
        base, shift = (
            self._structs.static(*((place, name.format(field)) for place, name in places))
            for field in ("_base", "_shift")
        )
        return self._memory.word(base), min(self._memory.number(shift, 4), 16)

    def _read_pointer_shift(self) -> int:
        """Return the number of low bits for ZGC's colour in a pointer, above which the address is stored; 0 in versions
        without them.
        """
        key = ("ZGlobalsForVMStructs", "_ZPointerLoadShift")
        if key not in self._structs.offsets:
            return 0
        values = self._memory.word(self._structs.static(("ZGlobalsForVMStructs", "_instance_p")))
        shift = self._memory.number(self._memory.word(values + self._structs.offset(key)), 8)
        return shift if shift < 32 else 0
