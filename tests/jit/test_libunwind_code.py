"""Tests of libunwind's dynamic lists in one process: memory that changes during reads, and endless tables."""

from __future__ import annotations

import struct

import pytest

from pyprof.model.address_space import AddressSpace, ReadMemory
from pyprof.model.arch import X86_64
from pyprof.model.jit_code_map import ALWAYS
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code import gdb_jit_and_libunwind_code as code_libunwind
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.gdb_jit_and_libunwind_code import LibunwindCode
from pyprof.unwind.formats.libunwind_registrations import LIST as LIST_NAME
from pyprof.unwind.formats.libunwind_registrations import RegionFormat
from tests.jit.memory import Memory
from tests.jit.test_libunwind_list import CODE, LIST, NAME, REGION, with_procedure, words

INFO, TABLE, SIZE = 0x2000, 0x100000, 0x4000


def scan(read: ReadMemory, now_ns: int) -> CodeScan:
    return CodeScan(AddressSpace(1, 1, 0, (), read, ""), X86_64, ALWAYS, now_ns, ((LIST_NAME, LIST),))


def test_registration_that_is_gone_when_it_is_read_again_is_kept_as_it_was_read() -> None:
    """Remove a registration before its second read.

    The second read is due because the layout of the first registration is ambiguous until the next one shows the old
    layout.
    """
    memory = with_procedure(X86_64, offset=False)
    second = memory.pieces.pop(INFO)
    memory.put(LIST, struct.pack("<IIQ", 0, 1, INFO))
    memory.put(INFO, words(X86_64, 0x8000, 0, CODE - 16, CODE, 0) + bytes(80))
    memory.put(0x8000, bytes(second))

    def read(avma: int, size: int) -> bytes:
        if avma == NAME:  # the name of the second registration
            memory.pieces.pop(INFO, None)
        return memory.read(avma, size)

    code = LibunwindCode(Diagnostics())
    assert code.update(scan(read, 100))
    assert REGION in memory.pieces
    assert [(span.start, span.value.info.with_offset) for span in code.spans] == [(CODE - 16, True), (CODE, False)]


def test_list_that_changes_whenever_it_is_read_is_read_a_few_times() -> None:
    memory, diagnostics = with_procedure(X86_64, offset=True), Diagnostics()

    def read(avma: int, size: int) -> bytes:
        struct.pack_into("<I", memory.pieces[LIST], 4, memory.reads)
        return memory.read(avma, size)

    LibunwindCode(diagnostics).update(scan(read, 100))
    assert diagnostics.counts["libunwind_list_changed"] == 1


def tables(memory: Memory, kind: int, generation: int, count: int) -> None:
    """Write a list of unwind infos whose tables share one piece of memory."""
    memory.put(TABLE, bytes(SIZE))
    memory.put(NAME, struct.pack("<QQQQ", CODE - SIZE, CODE + SIZE, TABLE, SIZE))
    stated = (4, NAME) if kind == RegionFormat.TABLE else (SIZE // 8, TABLE)
    for n in range(count):
        start, following = CODE + 16 * n, INFO + 0x100 * (n + 1) if n + 1 < count else 0
        union = words(X86_64, 0, TABLE, *stated)
        head = words(X86_64, following, 0, start, start + 16, 0) + struct.pack("<iiQ", kind, 0, 0)
        memory.put(INFO + 0x100 * n, head + union + bytes(32))
    memory.put(LIST, struct.pack("<IIQ", 0, generation, INFO if count else 0))


@pytest.mark.parametrize(
    "kind", [RegionFormat.TABLE, RegionFormat.REMOTE_TABLE, RegionFormat.IP_OFFSET, RegionFormat.REMOTE_TABLE_64]
)
def test_tables_are_kept_up_to_a_total_and_again_once_others_are_forgotten(
    kind: RegionFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_libunwind, "MAX_TOTAL", 4 * SIZE)
    diagnostics = Diagnostics()
    code, memory = LibunwindCode(diagnostics), Memory()
    for generation, count, opened in ((1, 10, 4), (11, 0, 0), (14, 3, 3)):
        tables(memory, kind, generation, count)
        code.update(scan(memory.read, 100 * generation))
        code.spans.forget(100 * generation)
        assert len(code.spans) == count
        assert sum(span.value.table is not None for span in code.spans) == opened
    assert diagnostics.counts["libunwind_table_unusable"] == 6
