"""Tests of code objects that come and go: reused addresses, and more code objects than the cache keeps."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import replace

import pytest

from pyprof.collectors.linux.libc import memory_reader
from pyprof.interpreters.cpython.code_objects import CodeReader, PythonCode
from pyprof.interpreters.cpython.layout import LAYOUTS, Layout, LineTableFormat
from pyprof.interpreters.cpython.object_reader import Memory, Objects
from pyprof.interpreters.function_table import UNKNOWN, UNREAD, FunctionTable
from pyprof.model.interpreter_frames import FunctionPlace

FREED = "[function freed or swapped out before its name was read]"


class CodeObject:
    """A synthetic code object, with a copy of its instructions for thread 1 as in free-threaded builds."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._buffer = ctypes.create_string_buffer(1 << 14)
        self.at = ctypes.addressof(self._buffer) + 63 & ~63
        self._kind, self._text, self._array = self.at + 4096, self.at + 8192, self.at + 12288
        self._put(self._kind + layout.object.type_name, self._kind + 1024)
        ctypes.memmove(self._kind + 1024, b"code\0", 5)

    def _put(self, avma: int, word: int) -> None:
        ctypes.c_uint64.from_address(avma).value = word

    def become(self, name: str, number: int, instructions: int) -> None:
        """Write a code object.

        Args:
            name: Name of the function.
            number: A number that differs between code objects.
            instructions: Address of the thread's copy of the instructions.
        """
        code, of = self.layout.code, self.layout.object
        text = self._text + 256 * number
        self._put(self.at, 1)
        self._put(self.at + of.type, self._kind)
        self._put(self.at + of.var_size, 100)
        self._put(text + of.text_length, len(name))
        self._put(text + of.text_state, of.compact | of.ascii | 1 << of.kind_shift)
        ctypes.memmove(text + of.text_ascii, name.encode(), len(name))
        for field in (code.filename, code.name, code.qualname):
            self._put(self.at + field, text)
        self._put(self.at + code.linetable, self._text)
        self._put(self.at + code.tlbc, self._array)
        self._put(self._array, 2)
        self._put(self._array + 16, instructions)

    def free(self, count: int) -> None:
        """Overwrite the reference count with this value."""
        self._put(self.at, count)

    def head(self, reader: CodeReader) -> bytes:
        return ctypes.string_at(self.at + reader.head_at, reader.head_size)


def code(number: int) -> PythonCode:
    return PythonCode(f"f_{number}", f"f_{number}", "elf_file.py", 1, LineTableFormat.LOCATIONS, b"")


def made() -> tuple[CodeObject, CodeReader, FunctionTable]:
    layout = LAYOUTS[12]
    layout = replace(layout, code=replace(layout.code, tlbc=layout.code.linetable + 16))
    book = FunctionTable()
    return CodeObject(layout), CodeReader(Memory(memory_reader(os.getpid(), lambda: True)), layout, book), book


def test_code_at_the_address_of_another_has_its_own_instructions() -> None:
    found, reader, book = made()
    for n, start in ((0, 0x1000), (1, 0x8000)):
        found.become("ab"[n], n, start)
        place = reader.find_place(found.at, found.head(reader), start + 6, 1)
        assert place is not None
        assert book.line(place).function == "ab"[n]
        assert place.instruction == 3


@pytest.mark.parametrize("count", [0, 0x7F12_3456_7890, 0x5555_0000_0000], ids=["none", "next free", "rounded"])
def test_freed_code_whose_contents_are_still_there_has_no_name(count: int) -> None:
    found, reader, _ = made()
    found.become("a", 0, 0x1000)
    head = found.head(reader)
    found.free(count)
    assert reader.find_place(found.at, head, 0, 0) == UNREAD
    assert reader.lost == 1


@pytest.mark.parametrize(
    ("local", "shared", "lives"),
    [(1, 0, True), (0, 5 << 2, True), (0, 0, False), (0, 3, False)],
    ids=["of its thread", "of others", "none", "merged"],
)
def test_free_threaded_object_lives_while_one_of_its_counts_is_not_zero(local: int, shared: int, lives: bool) -> None:
    layout = replace(LAYOUTS[12].object, type=24)
    objects = Objects(Memory(memory_reader(os.getpid(), lambda: True)), layout, 13)
    assert objects.is_alive(struct.pack("<QIIQ", 0x7F12_3456_7890, 0, local, shared)) == lives


def test_code_that_runs_again_after_its_name_was_dropped_has_it_again() -> None:
    found, reader, book = made()
    found.become("a", 0, 0x1000)
    numbers = set()
    for _ in range(3):
        place = reader.find_place(found.at, found.head(reader), 0, 0)
        assert place is not None
        assert book.line(place).function == "a"
        numbers.add(place.function)
        book.drop_unused(set())
        book.drop_unused(set())
        assert len(book.codes) == 1
        assert book.line(place).function == FREED
    assert len(numbers) == 3, "an index was given twice"


def test_names_stay_as_long_as_a_window_may_ask_for_them() -> None:
    book = FunctionTable()
    for window in range(100):
        index = book.add_code(code(window))
        waiting = book.add_code(code(window + 1000))  # its sample belongs to the next window
        book.drop_unused({index})
        assert book.line(FunctionPlace(waiting, 5)).function == f"f_{window + 1000}"
        assert book.line(FunctionPlace(index, 5)).function == f"f_{window}"
    assert len(book.codes) <= 5
    assert UNKNOWN in book.codes


def test_name_that_is_given_again_before_it_is_dropped_stays() -> None:
    book = FunctionTable()
    index = book.add_code(code(1))
    book.drop_unused(set())
    assert book.has_code(index)
    book.drop_unused(set())
    assert book.add_code(code(1)) == index
    book.drop_unused(set())
    book.drop_unused(set())
    assert not book.has_code(index)
