"""Code objects: the names and line tables are read once, after the stop in which an object was first seen.

The address of a freed code object is reused. Each sample therefore copies the head of the code object: its first line,
its version if it has one, and the pointers to its names and its line table. The head must have the same contents before
and after the names are read.
"""

from __future__ import annotations

from pyprof.interpreters.cpython.layout import NONE, Layout, LineTableFormat
from pyprof.interpreters.cpython.line_table import find_first_instruction, find_line
from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.objects import Objects
from pyprof.interpreters.function_numbers import UNREAD, FunctionTable
from pyprof.model.interpreter_state import FunctionPlace
from pyprof.model.profile import Line
from pyprof.records import dataclass

LANGUAGE = "Python"
_MAX_NAME = 4096
_MAX_ENTRIES = 1 << 16
_MAX_SETTLED = 1 << 16
"""Maximum size in bytes of a Python line table that is searched for each new instruction."""
_HELPERS = frozenset({("__init__", "__init__"), ("<interpreter trampoline>", "<shim>"), ("<shim>", "<shim>")})
"""Pairs (name, file) of Python frames that the interpreter pushes for itself."""


@dataclass(frozen=True, slots=True)
class PythonCode:
    """One code object as the profile names it (a code_book.NamedCode).

    Attributes:
        hidden: True if the frame is the interpreter's own and is not shown.
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
        """Return the Python function's name and the line of an instruction (as in lines.find_line)."""
        line = find_line(self.lines, self.table, self.first_line, instruction)
        return Line(self.qualname, self.name, 0, self.filename or None, line)

    def line_key(self, instruction: int) -> int:
        """Return the first Python instruction of the same source line, or the instruction itself if the line table is
        too long to search.
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
        head_at: Offset of the part of a code object that each sample copies.
        head_size: Size of that part in bytes.
        identity: Slice of the head that distinguishes code objects.
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
        """Return the Python frame that runs the code at an address, or None if the frame is the interpreter's own.

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
        """Return True if the name of the code object at an address has been read and belongs to this head."""
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
        """Return the address of a thread's own copy of a code object's instructions (free-threaded builds)."""
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
