"""Lookup of symbols by name: data as well as functions, hidden ones too if a table has them.

The tables are not decoded completely. The name is searched in the string table, and its offset then in the symbols.
Source: gABI, "Symbol Table".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pyprof.errors import FormatError
from pyprof.objfile.base import ObjectFile

TABLES = ((".dynsym", ".dynstr"), (".symtab", ".strtab"))
MAX_PLACES = 64
"""Maximum number of occurrences of a name in a string table that are examined. Linkers store a name once, or as the end
of a longer one.
"""

MAX_PREFIXED = 4096
"""Maximum number of names of symbols that are found by their first letters."""
MAX_NAME = 256

SHN_UNDEF, SHN_ABS = 0, 0xFFF1


def symbol_layout(file: ObjectFile) -> np.dtype[np.void]:
    """Return the layout of one entry of an ELF symbol table: name, info, other, shndx, value, size."""
    o = file.order
    if file.address_size == 8:
        fields = [("name", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2"), ("value", "u8"), ("size", "u8")]
    else:
        fields = [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2")]
    return np.dtype([(name, o + kind) for name, kind in fields])


def find_named_symbols(file: ObjectFile, names: Sequence[bytes]) -> dict[bytes, int]:
    """Return the addresses of the defined symbols among `names`, each from the first symbol table that has it.

    A broken table is skipped.
    """
    found: dict[bytes, int] = {}
    for table, strings in TABLES:
        if len(found) < len(names):
            try:
                here = _in_table(file, table, strings, names)
            except FormatError:
                continue
            found = {**here, **found}
    return found


def find_prefixed_symbols(file: ObjectFile, prefixes: Sequence[bytes]) -> dict[bytes, int]:
    """Return the addresses of the defined symbols whose names begin with one of `prefixes`, MAX_PREFIXED at most.

    A broken table is skipped. Names that a linker stores as the end of longer ones are not found.
    """
    found: dict[bytes, int] = {}
    for table, strings in TABLES:
        try:
            text = file.section(strings)
            places = _prefixed_places(bytes(text), prefixes) if text is not None else {}
            found = {**_at_places(file, table, places), **found}
        except FormatError:
            continue
    return found


def _in_table(file: ObjectFile, table: str, strings: str, names: Sequence[bytes]) -> dict[bytes, int]:
    text = file.section(strings)
    if text is None:
        return {}
    return _at_places(file, table, {name: _places(bytes(text), name) for name in names})


def _at_places(file: ObjectFile, table: str, places: Mapping[bytes, Sequence[int]]) -> dict[bytes, int]:
    """Return the addresses of symbols by the offsets at which their names may stand in the string table."""
    if not any(places.values()):
        return {}
    data = file.section(table)
    if data is None:
        return {}
    layout = symbol_layout(file)
    symbols = np.frombuffer(data, layout, len(data) // layout.itemsize)
    names = {offset: name for name, offsets in places.items() for offset in offsets}
    hits = np.flatnonzero(np.isin(symbols["name"], list(names)) & (symbols["shndx"] != SHN_UNDEF))
    found: dict[bytes, int] = {}
    for offset, value in zip(symbols["name"][hits].tolist(), symbols["value"][hits].tolist(), strict=True):
        found.setdefault(names[offset], value)
    if table == ".symtab":
        file.forget(table)  # it is large, and the reader of function symbols reads it only once
    return found


def _prefixed_places(text: bytes, prefixes: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Return the names in a string table that begin with one of `prefixes`, and where they stand."""
    places: dict[bytes, list[int]] = {}
    for prefix in prefixes:
        at = text.find(b"\0" + prefix)
        while at >= 0 and len(places) < MAX_PREFIXED:
            end = text.find(b"\0", at + 1, at + MAX_NAME)
            if end > 0:
                places[text[at + 1 : end]] = [at + 1]
            at = text.find(b"\0" + prefix, at + 1)
    return places


def _places(text: bytes, name: bytes) -> list[int]:
    places: list[int] = []
    at = text.find(name + b"\0")
    while at >= 0 and len(places) < MAX_PLACES:
        places.append(at)
        at = text.find(name + b"\0", at + 1)
    return places
