"""The functions of V8's scripts by their bytecode, for frames whose JSFunction cannot be read any more.

The garbage collector moves a young JSFunction within milliseconds. It hardly ever moves the bytecode that runs in the
frame, the scripts, the list of functions of each script, and the SharedFunctionInfo of each function.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from pyprof.errors import FormatError
from pyprof.runtime_code.v8.heap import V8Heap, smi

MAX_FUNCTIONS = 1 << 15
"""Maximum number of JavaScript functions that one search by bytecode examines."""
MAX_BLOCKS = 1 << 10
"""Maximum number of memory blocks that one search for functions by bytecode reads."""
_BLOCK = 1 << 14
_LIST_LENGTH, _LIST_DATA = 16, 24
"""Offsets in bytes of the length and of the elements in V8's growing list of weak references (WEAK_ARRAY_LIST_TYPE)."""
_ROOTS = 1024
"""Number of words after the address in V8's root register among which the root for the list of scripts is searched."""
MAX_SCRIPTS = 1 << 12
_FIELDS = 20
"""Number of fields of a V8 Script among which the list of its functions is searched, because the list's offset differs
between versions.
"""


class BlockReader:
    """A reader of V8's memory that reads each block once. It serves a single search, because the process runs
    meanwhile.
    """

    def __init__(self, heap: V8Heap) -> None:
        self._heap = heap
        self._blocks: dict[int, bytes] = {}

    def read(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of memory, or fewer if they are not readable or too many blocks were read."""
        start, offset = avma & -_BLOCK, avma & _BLOCK - 1
        block = self._blocks.get(start)
        if block is None and len(self._blocks) < MAX_BLOCKS:
            block = self._blocks[start] = self._heap.read_available(start, _BLOCK)
        if block is None:
            return b""
        found = block[offset : offset + size]
        return found if len(found) == size else self._heap.read_available(avma, size)


def find_by_bytecode(heap: V8Heap, scripts: Iterable[int], wanted: Set[int]) -> dict[int, int]:
    """Return the JavaScript functions that have one of the wanted bytecodes, as a dict from BytecodeArray to
    SharedFunctionInfo (tagged pointers).

    Args:
        heap: V8's heap.
        scripts: Pointers to the scripts that are searched.
        wanted: Pointers to the wanted objects, each a BytecodeArray.
    """
    heap = V8Heap(BlockReader(heap).read, heap.layout)
    found: dict[int, int] = {}
    others: list[tuple[int, int]] = []
    left = MAX_FUNCTIONS
    for script in scripts:
        functions = _read_list(heap, script, left)
        left -= len(functions)
        for pointer in functions:
            data = _read_data(heap, pointer)
            if data in wanted:
                found[data] = pointer
            elif data:
                others.append((pointer, data))
        if left <= 0 or len(found) == len(wanted):
            return found
    for pointer, data in others:  # code in place of the BytecodeArray, which it refers to
        bytecode = _find_bytecode(heap, data)
        if bytecode in wanted:
            found[bytecode] = pointer
            if len(found) == len(wanted):
                break
    return found


def find_script_list(heap: V8Heap, root: int) -> int:
    """Return the address of the V8 root that refers to the list of all scripts, or 0. The root is returned because V8
    replaces the list when it grows.

    Args:
        heap: V8's heap.
        root: Value of the register in which V8's code holds the address of its roots.
    """
    heap = V8Heap(BlockReader(heap).read, heap.layout)
    data = heap.read_available(root, 8 * _ROOTS)
    for at, word in enumerate(np.frombuffer(data[: len(data) & ~7], "<u8").tolist()):
        if word & 3 == 1 and heap.has_type(word, "type_weak_list") and read_script_list(heap, root + 8 * at):
            return root + 8 * at
    return 0


def read_script_list(heap: V8Heap, slot: int) -> list[int]:
    """Return the scripts in the list to which a V8 root refers, the newest first. The result is empty if the root
    refers to something else.
    """
    try:
        pointer = heap.word(slot)
        count = smi(heap.field(pointer, _LIST_LENGTH)) or 0
        data = heap.read((pointer & ~3) + _LIST_DATA, 8 * max(min(count, MAX_SCRIPTS), 0))
    except FormatError:
        return []
    scripts = _pointers(data)
    return scripts[::-1] if scripts and heap.has_type(scripts[0], "type_script") else []


def _pointers(data: bytes) -> list[int]:
    """Return the V8 objects to which the weak references in a list point, without references that the garbage collector
    has cleared.
    """
    words = np.frombuffer(data, "<u8")
    return [int(word) for word in (words[(words & np.uint64(1) != 0) & (words > 3)] & ~np.uint64(2)).tolist()]


def _read_list(heap: V8Heap, script: int, most: int) -> list[int]:
    """Return the function list of a V8 script: pointers to objects, most of which are a SharedFunctionInfo."""
    try:
        if not heap.has_type(script, "type_script"):
            return []
        fields = np.frombuffer(heap.read((script & ~3) + 8, 8 * _FIELDS), "<u8").tolist()
        lists = [field for field in fields if field & 3 == 1 and heap.has_type(field, "type_weak_array")]
        return _pointers(heap.array(lists[0], most)) if lists else []
    except FormatError:
        return []


def _read_data(heap: V8Heap, pointer: int) -> int:
    """Return the object in the field function_data of a SharedFunctionInfo: a BytecodeArray, code, or something else. 0
    if the pointer is not to a SharedFunctionInfo.
    """
    try:
        is_function = heap.type_of(pointer) == heap.layout.at["type_shared"]
        return heap.field(pointer, heap.layout.at["function_data"]) if is_function else 0
    except FormatError:
        return 0


def _find_bytecode(heap: V8Heap, data: int) -> int:
    try:
        return heap.bytecode_of(data)
    except FormatError:
        return 0
