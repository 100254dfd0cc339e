"""Code objects: read once, after the stop in which they were seen; known again by what cannot stay when they go.

The address of a code object is reused when it is freed. What stands in its head (its first line, its version where it
has one, the pointers to its names and its table of lines) is copied with each sample; it must be what it was when the
names were read, before and after that.
"""

from __future__ import annotations

from pyprof.interpreters.code_book import UNREAD, CodeBook
from pyprof.interpreters.cpython.layout import NONE, Layout, LineTableFormat
from pyprof.interpreters.cpython.lines import first_of_line, line_of
from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.objects import Objects
from pyprof.model.interpreter import FunctionPlace
from pyprof.model.profile import Line
from pyprof.records import dataclass

LANGUAGE = "Python"
_LONGEST_NAME = 4096
_MOST_ENTRIES = 1 << 16
_MOST_SETTLED = 1 << 16
"""Bytes of a table of lines that is read for each instruction that is met."""
_HELPERS = frozenset({("__init__", "__init__"), ("<interpreter trampoline>", "<shim>"), ("<shim>", "<shim>")})
"""(name, file) of frames that the interpreter pushes for itself."""


@dataclass(frozen=True, slots=True)
class PythonCode:
    """One code object as the profile names it, a code_book.NamedCode. hidden: the interpreter's own, not shown."""

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
        """instruction: as in lines.line_of."""
        line = line_of(self.lines, self.table, self.first_line, instruction)
        return Line(self.qualname, self.name, 0, self.filename or None, line)

    def settled(self, instruction: int) -> int:
        """As code_book.NamedCode has it."""
        if instruction < 0 or len(self.table) > _MOST_SETTLED:
            return instruction
        return first_of_line(self.lines, self.table, self.first_line, instruction)


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: bytes
    index: int
    hidden: bool
    start: int
    size: int


class CodeReader:
    """Code objects of one process. head_at, head_size: what a sample copies of each code object. identity: the part of
    it that says which one it is.
    """

    def __init__(self, memory: Memory, layout: Layout, book: CodeBook, code_type: int = 0) -> None:
        """code_type: avma of the type of them all, 0 if it is not known."""
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

    def frame(self, address: int, head: bytes, instr: int, tlbc: int = 0) -> FunctionPlace | None:
        """A frame that runs the code at address, None if it is the interpreter's own. head: as copied with
        the sample, head_size bytes of the code from head_at on; instr: as the frame has it.
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

    def knows(self, address: int, head: bytes) -> bool:
        """Has it read the name of the code at an address, and is it the one with this head?"""
        entry = self._entries.get(address)
        return entry is not None and entry.identity == head[self.identity]

    def head(self, address: int) -> bytes:
        """What a sample copies of the code at an address, as it is now. Raises Unreadable."""
        return bytes(self._memory.bytes(address + self.head_at, self.head_size))

    def _entry(self, address: int, head: bytes) -> _Entry | None:
        identity = head[self.identity]
        entry = self._entries.get(address)
        if entry is not None and entry.identity == identity and self._book.has(entry.index):
            return entry
        try:
            entry = self._read(address, head, identity)
            now = self._memory.bytes(address, self.head_at + self.head_size)
        except Unreadable:
            return None
        if now[self.head_at :][self.identity] != identity or not self._objects.lives(now[: self.head_at]):
            return None
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries.clear()
            self._tlbc.clear()
        self._entries[address] = entry
        self._tlbc.pop(address, None)
        return entry

    def _read(self, address: int, head: bytes, identity: bytes) -> _Entry:
        """Raises Unreadable where it is no code object."""
        layout, code, objects = self._layout, self._layout.code, self._objects
        kind = _word(head, 0)
        if kind != self._code_type:
            if self._code_type or objects.type_name(kind) != "code":
                raise Unreadable(f"code at {address:#x}")
            self._code_type = kind
        filename, name = (
            objects.text(_word(head, at - self.head_at), _LONGEST_NAME) for at in (code.filename, code.name)
        )
        qualname = name
        if code.qualname != NONE:
            qualname = objects.text(_word(head, code.qualname - self.head_at), _LONGEST_NAME)
        try:
            table = objects.data(_word(head, code.linetable - self.head_at))
        except Unreadable:
            table = b""
        first = int.from_bytes(head[self._first], "little", signed=True)
        hidden = (name, filename) in _HELPERS
        index = self._book.add(PythonCode(name, qualname, filename, first, code.lines, table, hidden))
        size = _word(head, layout.object.var_size - self.head_at) if code.bytecode != NONE else 0
        return _Entry(identity, index, hidden, address + code.bytecode, size)

    def _start(self, address: int, entry: _Entry, tlbc: int) -> int:
        """Where a thread's own copy of the instructions begins (free-threaded builds)."""
        starts = self._tlbc.setdefault(address, {})
        known = starts.get(tlbc)
        if known is None:
            try:
                array = self._memory.u64(address + self._layout.code.tlbc)
                count = self._memory.u64(array)
                known = self._memory.u64(array + 8 + 8 * tlbc) if tlbc < count else 0
            except Unreadable:
                known = 0
            starts[tlbc] = known
        return known or entry.start


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
