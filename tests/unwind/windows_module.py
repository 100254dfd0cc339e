"""Windows x64 modules made by hand: code, unwind info, exports and COFF symbols."""

from __future__ import annotations

import struct
from collections.abc import Sequence

BASE = 0x1_8000_0000
TEXT, XDATA, PDATA, EDATA = 0x1000, 0x2000, 0x3000, 0x4000
_AT = 0x400
_PAGE = 0x1000
CODE, DATA = 0x6000_0020, 0x4000_0040
PUSH_NONVOL, ALLOC_LARGE, ALLOC_SMALL, SET_FPREG, SAVE_NONVOL, SAVE_NONVOL_FAR, EPILOG, SPARE, XMM, XMM_FAR, MACHINE = (
    range(11)
)


def step(after: int, code: int, operand: int = 0, *more: int) -> bytes:
    """Return one operation of unwind info."""
    return struct.pack(f"<BB{len(more)}H", after, operand << 4 | code, *more)


def unwind_info(
    *steps: bytes, frame: int = 0, offset: int = 0, version: int = 1, chained: tuple[int, int, int] | None = None
) -> bytes:
    """Return unwind info with steps in the order of the format: the last instruction first."""
    codes = b"".join(steps)
    count = len(codes) // 2
    prologue = codes[0] if codes else 0
    head = struct.pack("<BBBB", version | (4 << 3 if chained else 0), prologue, count, frame | offset << 4)
    tail = struct.pack("<III", *chained) if chained else b""
    return head + codes + b"\0\0" * (count & 1) + tail


def exports(names: dict[str, int]) -> bytes:
    """Return an export table at EDATA of functions by name."""
    count = len(names)
    functions, table, ordinals = EDATA + 40, EDATA + 40 + 4 * count, EDATA + 40 + 8 * count
    at = EDATA + 40 + 10 * count
    texts, places = b"", []
    for name in names:
        places.append(at + len(texts))
        texts += name.encode() + b"\0"
    head = struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, 0, 1, count, count, functions, table, ordinals)
    numbers = range(count)
    return head + struct.pack(f"<{count}I{count}I{count}H", *names.values(), *places, *numbers) + texts


def coff_symbols(names: dict[str, int]) -> bytes:
    """Return a COFF symbol table of functions in .text with its strings. Each is followed by an auxiliary entry."""
    strings, table = b"", b""
    for name, rva in names.items():
        text = name.encode()
        if len(text) > 8:
            field = struct.pack("<II", 0, 4 + len(strings))
            strings += text + b"\0"
        else:
            field = text.ljust(8, b"\0")
        table += field + struct.pack("<IhHBB", rva - TEXT, 1, 0x20, 2, 1) + bytes(18)
    return table + struct.pack("<I", 4 + len(strings)) + strings


def windows_module(
    text: bytes,
    entries: Sequence[tuple[int, int, int]],
    xdata: bytes,
    exported: dict[str, int] | None = None,
    symbols: dict[str, int] | None = None,
    time_stamp: int = 0x1234,
) -> bytes:
    """Return a module of four sections.

    Args:
        text: Code, at TEXT.
        entries: (start, end, place of the unwind info) of each function.
        xdata: Unwind infos, at XDATA.
        exported: Exported functions by name.
        symbols: Functions in the COFF symbol table by name.
        time_stamp: Time stamp of the module.
    """
    table = b"".join(struct.pack("<III", *entry) for entry in entries)
    edata = exports(exported) if exported else b""
    parts = [(b".text", TEXT, text, CODE), (b".xdata", XDATA, xdata, DATA), (b".pdata", PDATA, table, DATA)]
    parts += [(b".edata", EDATA, edata, DATA)]
    size = EDATA + _PAGE
    directories = [(EDATA, len(edata)) if edata else (0, 0), (0, 0), (0, 0), (PDATA, len(table)), *[(0, 0)] * 12]
    optional = struct.pack("<H14xI4xQII", 0x20B, TEXT, BASE, _PAGE, 0x200).ljust(56, b"\0")
    optional = (optional + struct.pack("<III", size, _AT, 0)).ljust(108, b"\0") + struct.pack("<I", 16)
    optional += b"".join(struct.pack("<II", *place) for place in directories)
    headers, body, at = b"", b"", _AT
    for name, rva, content, flags in parts:
        headers += struct.pack("<8sIIII12xI", name, len(content), rva, len(content), at + len(body), flags)
        body += content
    coff = (at + len(body), 2 * len(symbols)) if symbols else (0, 0)
    machine = struct.pack("<HHIIIHH", 0x8664, len(parts), time_stamp, *coff, len(optional), 0x2022)
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 0x80)
    head = dos.ljust(0x80, b"\0") + b"PE\0\0" + machine + optional + headers
    return head.ljust(_AT, b"\0") + body + (coff_symbols(symbols) if symbols else b"")
