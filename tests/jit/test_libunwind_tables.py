"""Tests of tables that libunwind's dynamic unwind info points to, in synthetic memory."""

from __future__ import annotations

import struct

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import ARM, X86_64, Arch
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.libunwind_registrations import (
    DynInfo,
    Head,
    PairTable,
    RegionFormat,
    RegionTable,
    open_table,
)
from pyprof.unwind.rules import RegKind, RegRule
from tests.jit.memory import Memory

CODE, TABLE, FRAMES = 0x10000, 0x20000, 0x30000


def opened(
    memory: Memory, arch: Arch, kind: RegionFormat, table_len: int, segbase: int = 0, offset: int = 0
) -> RegionTable:
    head = Head(0x1000, CODE, CODE + 0x100, 0, kind)
    info = DynInfo(head, "", True, offset, (), segbase, table_len, TABLE)
    table = open_table(info, memory.read, arch, Diagnostics())
    assert table is not None
    return table


def eh_frame(start: int, size: int) -> tuple[bytes, int]:
    """Return a CIE and an FDE with absolute pointers, and the FDE's offset."""
    cie = struct.pack("<IIB3sBBB", 0, 0, 1, b"zR\0", 1, 0x78, 16) + bytes([1, 0, 0x0C, 7, 8, 0x90, 1])
    cie += bytes(-len(cie) % 4)
    cie = struct.pack("<I", len(cie) - 4) + cie[4:]
    fde = struct.pack("<IIQQB", 0, len(cie) + 4, start, size, 0) + bytes([0x44, 0x0E, 32])
    fde += bytes(-len(fde) % 4)
    return cie + struct.pack("<I", len(fde) - 4) + fde[4:], len(cie)


@pytest.mark.parametrize("kind", [RegionFormat.REMOTE_TABLE, RegionFormat.REMOTE_TABLE_64, RegionFormat.IP_OFFSET])
def test_pairs_are_relative_to_what_the_format_says_and_need_no_order(kind: RegionFormat) -> None:
    memory = Memory()
    data, fde = eh_frame(CODE + 0x40, 0x20)
    memory.put(FRAMES, data)
    base = CODE if kind == RegionFormat.IP_OFFSET else FRAMES
    pairs = [(CODE + 0x80 - base, fde), (CODE + 0x40 - base, fde), (CODE - base, fde)]
    width = "q" if kind == RegionFormat.REMOTE_TABLE_64 else "i"
    memory.put(TABLE, b"".join(struct.pack(f"<{width}{width}", *pair) for pair in pairs))
    table = opened(memory, X86_64, kind, len(pairs) * (2 if width == "q" else 1), FRAMES)
    assert isinstance(table, PairTable)
    rows = table.function_at(CODE + 0x48)
    assert rows is not None
    assert (rows.start, rows.end, rows.starts) == (CODE + 0x40, CODE + 0x60, (CODE + 0x40, CODE + 0x44))
    assert [rule.cfa_off for rule in rows.rules] == [8, 32]
    assert table.function_at(CODE + 0x70) is None, "the pair before it leads to an FDE that ends earlier"


def test_pair_that_leads_to_no_fde_is_an_error() -> None:
    memory = Memory()
    memory.put(FRAMES, bytes(64))
    memory.put(TABLE, struct.pack("<ii", CODE - FRAMES, 8))
    with pytest.raises(FormatError, match="a CIE or FDE of 0 bytes"):
        opened(memory, X86_64, RegionFormat.REMOTE_TABLE, 1, FRAMES).function_at(CODE)
    memory.put(TABLE, struct.pack("<ii", CODE - FRAMES, 1 << 30))
    with pytest.raises(FormatError, match="not readable"):
        opened(memory, X86_64, RegionFormat.REMOTE_TABLE, 1, FRAMES).function_at(CODE)


def test_load_offset_is_added_to_what_the_table_says() -> None:
    memory = Memory()
    data, fde = eh_frame(CODE + 0x40 - 0x5000, 0x20)
    memory.put(FRAMES, data)
    memory.put(TABLE, struct.pack("<ii", CODE + 0x40 - 0x5000 - FRAMES, fde))
    rows = opened(memory, X86_64, RegionFormat.REMOTE_TABLE, 1, FRAMES, 0x5000).function_at(CODE + 0x50)
    assert rows is not None
    assert (rows.start, rows.end) == (CODE + 0x40, CODE + 0x60)


def test_exidx_in_memory_is_executed() -> None:
    """Execute a table of two functions.

    The first one has pop {r4, lr}, and the second one cannot be unwound. table_len counts bytes.
    """
    memory = Memory()
    entries = [(CODE, 0x80A8B0B0), (CODE + 0x40, 1)]
    memory.put(
        TABLE,
        b"".join(
            struct.pack("<II", start - TABLE - 8 * at & 0x7FFFFFFF, word) for at, (start, word) in enumerate(entries)
        ),
    )
    memory.put(CODE, bytes(0x100))
    table = opened(memory, ARM, RegionFormat.ARM_EXIDX, 16)
    rows = table.function_at(CODE + 0x10)
    assert rows is not None
    rule = rows.rules[-1]
    assert (rule.cfa_reg, rule.cfa_off, rule.ra) == (ARM.sp, 8, RegRule(RegKind.AT_CFA, -4))
    assert dict(rule.regs)[4] == RegRule(RegKind.AT_CFA, -8)
    assert table.function_at(CODE + 0x50) is None
