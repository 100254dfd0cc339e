"""CPython code objects: names, line tables, and a cache of code objects that need not be read while a thread is
stopped.

Source: Objects/lnotab_notes.txt (3.9), PEP 626 (3.10), Objects/locations.md (3.11 and later). A malformed table is used
up to its first error.

The address of a freed code object is reused. Each sample therefore copies the head of the code object: its first line,
its version if it has one, and the pointers to its names and its line table. The head must have the same contents before
and after the names are read.

A part of the head, the identity, distinguishes the code objects that have lain at one address. Heads are most of the
memory ranges that a stop reads. But if an identity is read before a stop, read again after it, and has not changed,
then it was the same during the stop. Code objects whose names are known are *settled*: their identities are read after
the stop. An address at which another code object was once found is never settled again; its head is read in the stop.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from pyprof.interpreters.cpython.layout import NONE, Layout, LineTableFormat
from pyprof.interpreters.cpython.object_reader import Memory, Objects, Unreadable
from pyprof.interpreters.function_table import UNREAD, FunctionTable
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.interpreter_reader_protocols import Gather, Span
from pyprof.model.profile import Line

_NO_LINE = -128
_NOWHERE = 15
_END = 1 << 62


def find_line(kind: LineTableFormat, table: bytes, first: int, instruction: int) -> int:
    """Return the source line of a Python instruction, 0 if it has none.

    Args:
        kind: Format of the line table.
        table: The line table.
        first: co_firstlineno.
        instruction: f_lasti in bytes before 3.10, else an index in code units; -1 before the first instruction.
    """
    if instruction < 0:
        return first
    return next(line for end, line in _SPANS[kind](table, first) if instruction < end)


def find_first_instruction(kind: LineTableFormat, table: bytes, first: int, instruction: int) -> int:
    """Return the first Python instruction that has the same source line as a given one. Instructions are numbered in
    bytes before CPython 3.10, else in code units.
    """
    starts: dict[int, int] = {}
    start = 0
    for end, line in _SPANS[kind](table, first):
        found = starts.setdefault(line, start) if end > start else start
        if instruction < end:
            return found
        start = end
    return instruction


def _lnotab(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    """Yield (end instruction, line) of each part of a Python line table in the format co_lnotab. An end is the offset
    in bytes after the part.
    """
    line, at = first, 0
    for pair in range(0, len(table) - 1, 2):
        at += table[pair]
        yield at, line
        line += _signed_byte(table[pair + 1])
    yield _END, line


def _linetable(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    line, end = first, 0
    for pair in range(0, len(table) - 1, 2):
        delta = _signed_byte(table[pair + 1])
        end += table[pair]
        if delta != _NO_LINE:
            line += delta
        yield (end + 1) // 2, 0 if delta == _NO_LINE else line
    yield _END, line


def _signed_byte(value: int) -> int:
    return value - 256 if value > 127 else value


def _locations(table: bytes, first: int) -> Iterator[tuple[int, int]]:
    line, at, end = first, 0, 0
    while at < len(table):
        head = table[at]
        code, end = head >> 3 & 15, end + (head & 7) + 1
        delta, at = _delta(table, at + 1, code)
        line += delta
        yield end, 0 if code == _NOWHERE else line
        while at < len(table) and not table[at] & 0x80:
            at += 1
    yield _END, line if table else 0


def _delta(table: bytes, at: int, code: int) -> tuple[int, int]:
    """Return (line increment, offset behind it) of an entry of a Python line table. The first byte of an entry has its
    highest bit set.
    """
    if code in (13, 14):
        value, at = _varint(table, at)
        return (-(value >> 1) if value & 1 else value >> 1), at
    return (code - 10 if code in (10, 11, 12) else 0), at


def _varint(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(table) and shift < 36:
        byte = table[at]
        value |= (byte & 63) << shift
        at += 1
        shift += 6
        if not byte & 64:
            break
    return value, at


_SPANS = {
    LineTableFormat.LNOTAB: _lnotab,
    LineTableFormat.LINETABLE: _linetable,
    LineTableFormat.LOCATIONS: _locations,
}


LANGUAGE = "Python"
_MAX_NAME = 4096
_MAX_ENTRIES = 1 << 16
_MAX_SETTLED = 1 << 16
"""Maximum size in bytes of a Python line table in which the first instruction of a source line is searched."""
_HELPERS = frozenset({("__init__", "__init__"), ("<interpreter trampoline>", "<shim>"), ("<shim>", "<shim>")})
"""(function name, file name) of code objects whose frames the interpreter pushes for itself. They are not shown."""


@dataclass(frozen=True, slots=True)
class PythonCode:
    """The names of one CPython code object: function, file and lines, as the profile shows them.

    Attributes:
        hidden: True if frames of this code object belong to the interpreter itself and are not shown.
    """

    name: str
    qualname: str
    filename: str
    first_line: int
    lines: LineTableFormat
    table: bytes
    hidden: bool = False

    @property
    def language(self) -> str:
        return LANGUAGE

    def line(self, instruction: int) -> Line:
        """Return the name of the Python function, and the source line of one of its instructions."""
        line = find_line(self.lines, self.table, self.first_line, instruction)
        return Line(self.qualname, self.name, 0, self.filename or None, line)

    def line_key(self, instruction: int) -> int:
        """Return the first Python instruction that has the same source line as the given one. If the line table is too
        long to search, return the given instruction.
        """
        if instruction < 0 or len(self.table) > _MAX_SETTLED:
            return instruction
        return find_first_instruction(self.lines, self.table, self.first_line, instruction)


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: bytes
    index: int
    hidden: bool
    start: int
    size: int


class CodeReader:
    """Reader of the code objects of one process.

    Attributes:
        head_at: Offset in bytes of the head, the part of a code object that each sample copies.
        head_size: Size of the head in bytes.
        identity: Slice of the head that distinguishes code objects at one address.
        lost: Number of frames whose code object was freed before its name was read.
    """

    def __init__(self, memory: Memory, layout: Layout, book: FunctionTable, code_type: int = 0) -> None:
        """Create a reader of the code objects of one CPython runtime.

        Args:
            code_type: avma of the type object of all code objects, 0 if it is not known.
        """
        code = layout.code
        self.head_at = layout.object.type
        self.head_size = code.linetable + 8 - self.head_at
        self.identity = slice((code.firstlineno & ~7) - self.head_at, self.head_size)
        self._first = slice(code.firstlineno - self.head_at, code.firstlineno + 4 - self.head_at)
        self._memory = memory
        self._layout = layout
        self._objects = Objects(memory, layout.object, layout.minor)
        self._book = book
        self._entries: dict[int, _Entry] = {}
        self._code_type = code_type
        self._tlbc: dict[int, dict[int, int]] = {}
        self.lost = 0

    def find_place(self, address: int, head: bytes, instr: int, tlbc: int = 0) -> FunctionPlace | None:
        """Return the Python frame that runs the code at an address, or None if the frame belongs to the interpreter
        itself.

        Args:
            address: avma of the code object.
            head: head_size bytes of the code object from head_at on, as copied with the sample.
            instr: Instruction pointer or offset, as the frame has it.
            tlbc: Index of the thread-local bytecode (free-threaded builds).
        """
        entry = self._entry(address, head)
        if entry is None:
            self.lost += 1
            return UNREAD
        if entry.hidden:
            return None
        if self._layout.code.bytecode == NONE:
            return FunctionPlace(entry.index, instr if instr < 1 << 31 else -1)
        start = self._start(address, entry, tlbc) if tlbc else entry.start
        instruction = (instr - start) >> 1
        if not 0 <= instruction < max(entry.size, 1):
            instruction = -1
        return FunctionPlace(entry.index, instruction)

    def has_name(self, address: int, head: bytes) -> bool:
        """Return True if the name of the code object at an address is cached, and the object still has this head (its
        first bytes, by which it is identified).
        """
        entry = self._entries.get(address)
        return entry is not None and entry.identity == head[self.identity]

    def read_head(self, address: int) -> bytes:
        """Read the head (the part that samples copy) of the code object at an address as it is now.

        Raises:
            Unreadable: The memory cannot be read.
        """
        return bytes(self._memory.read_memory(address + self.head_at, self.head_size))

    def _entry(self, address: int, head: bytes) -> _Entry | None:
        identity = head[self.identity]
        entry = self._entries.get(address)
        if entry is not None and entry.identity == identity and self._book.has_code(entry.index):
            return entry
        try:
            entry = self._read(address, head, identity)
            now = self._memory.read_memory(address, self.head_at + self.head_size)
        except Unreadable:
            return None
        if now[self.head_at :][self.identity] != identity or not self._objects.is_alive(now[: self.head_at]):
            return None
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
            self._tlbc.clear()
        self._entries[address] = entry
        self._tlbc.pop(address, None)
        return entry

    def _read(self, address: int, head: bytes, identity: bytes) -> _Entry:
        """Read the names and the line table of a Python code object.

        Raises:
            Unreadable: There is no code object at the address.
        """
        layout, code, objects = self._layout, self._layout.code, self._objects
        kind = _word(head, 0)
        if kind != self._code_type:
            if self._code_type or objects.type_name(kind) != "code":
                raise Unreadable(f"code at {address:#x}")
            self._code_type = kind
        filename, name = (
            objects.read_str(_word(head, at - self.head_at), _MAX_NAME) for at in (code.filename, code.name)
        )
        qualname = name
        if code.qualname != NONE:
            qualname = objects.read_str(_word(head, code.qualname - self.head_at), _MAX_NAME)
        try:
            table = objects.read_bytes_object(_word(head, code.linetable - self.head_at))
        except Unreadable:
            table = b""
        first = int.from_bytes(head[self._first], "little", signed=True)
        hidden = (name, filename) in _HELPERS
        index = self._book.add_code(PythonCode(name, qualname, filename, first, code.lines, table, hidden))
        size = _word(head, layout.object.var_size - self.head_at) if code.bytecode != NONE else 0
        return _Entry(identity, index, hidden, address + code.bytecode, size)

    def _start(self, address: int, entry: _Entry, tlbc: int) -> int:
        """Return the address of the instructions of a code object. In free-threaded builds, each thread may have its
        own copy of the instructions, with the index `tlbc`.
        """
        starts = self._tlbc.setdefault(address, {})
        known = starts.get(tlbc)
        if known is None:
            try:
                array = self._memory.read_u64(address + self._layout.code.tlbc)
                count = self._memory.read_u64(array)
                known = self._memory.read_u64(array + 8 + 8 * tlbc) if tlbc < count else 0
            except Unreadable:
                known = 0
            starts[tlbc] = known
        return known or entry.start


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


_MAX_CODES = 1 << 16
_MAX_TOGETHER = 1024


class CodeCache:
    """A cache of the code objects of one process whose names are known. A stop of a thread need not read them; their
    identity is checked after the stop.

    Attributes:
        heads: The first words (heads) of the code objects by address, as a stop has read them.
        version: A number that changes when the identity of a cached code object has changed, or when the cache was
            cleared.
    """

    def __init__(self, head_at: int, head_size: int, identity: slice, memory: Memory) -> None:
        """Create an empty cache of Python code objects.

        Args:
            head_at: Offset of the head in a code object, in bytes.
            head_size: Size of the head in bytes.
            identity: Slice of the head that is the identity.
            memory: Reads the process as it is now.
        """
        self.heads: dict[int, bytes] = {}
        self.version = 0
        self._memory = memory
        self._head_size = head_size
        self._identity = identity
        self._identity_at = head_at + identity.start
        self._identity_size = identity.stop - identity.start
        self._unsteady: set[int] = set()
        self._together: dict[tuple[int, ...], tuple[list[Span], bytes]] = {}
        self._sorted = array("Q")
        self._sorted_of = (0, 0)

    @property
    def addresses(self) -> array[int]:
        """Addresses of the Python code objects that a stop need not read, ascending."""
        now = self.version, len(self.heads)
        if now != self._sorted_of:
            self._sorted_of, self._sorted = now, array("Q", sorted(self.heads))
        return self._sorted

    def add_heads(self, heads: Mapping[int, bytes]) -> None:
        """Add code objects whose names are known, so that later stops need not read them.

        Args:
            heads: Heads of the code objects by address, as a stop has read them.
        """
        for address, head in heads.items():
            if len(head) != self._head_size or address in self._unsteady:
                continue
            if address in self.heads:
                if self.heads[address][self._identity] != head[self._identity]:
                    self._unsettle(address)
                continue
            if len(self.heads) >= _MAX_CODES:
                self._forget()
            self.heads[address] = head

    def confirm_heads(self, addresses: tuple[int, ...], gather: Gather) -> Sequence[int]:
        """Read the heads of cached code objects after a stop, and return the addresses of those that have not changed
        since they were cached.

        If the process has ended since, the addresses of all cached code objects are returned.
        """
        known = self._together.get(addresses)
        if known is None:
            known = self._of(addresses)
        spans, identities = known
        data = gather(spans)
        if data == identities:
            return addresses
        # a code object was replaced or freed, or there was no time or room left to read all of them
        parts = [self._memory.read_available(*span) for span in spans]
        if not any(parts):
            return [address for address in addresses if address in self.heads]
        found = []
        for address, part in zip(addresses, parts, strict=True):
            head = self.heads.get(address)
            if head is not None and head[self._identity] == part:
                found.append(address)
            elif head is not None:
                self._unsettle(address)
        return found

    def _of(self, addresses: tuple[int, ...]) -> tuple[list[Span], bytes]:
        if len(self._together) >= _MAX_TOGETHER:
            self._together.clear()
        spans = [(address + self._identity_at, self._identity_size) for address in addresses]
        identities = b"".join(self.heads.get(address, b"")[self._identity] for address in addresses)
        found = self._together[addresses] = spans, identities
        return found

    def _unsettle(self, address: int) -> None:
        del self.heads[address]
        self._unsteady.add(address)
        self._changed()

    def _forget(self) -> None:
        self.heads.clear()
        self._unsteady.clear()
        self._changed()

    def _changed(self) -> None:
        self._together.clear()
        self.version += 1
