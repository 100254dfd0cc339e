"""Symbols of an object file by their names, without a look at the others. Raises FormatError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pyprof.objfile.base import ObjectFile

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class Symbol(NamedTuple):
    """value: svma. size: in bytes, 0 if not stated."""

    name: bytes
    value: int
    size: int


def defined_symbols(file: ObjectFile, needed: bytes, names: Sequence[bytes] = ()) -> Iterator[Symbol]:
    """The defined symbols of these names, of 64-bit little-endian files. A name that does not end in a zero byte stands
    for all that begin with it. needed: a table without this one gives nothing.
    """
    for table, strings in ((".dynsym", ".dynstr"), (".symtab", ".strtab")):
        text = bytes(file.section(strings) or b"")
        places = {at: name for name in (needed, *names) for at in _occurrences(text, name)}
        data = file.section(table) if needed in places.values() else None
        if data is None:
            continue
        symbols = np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)
        hits = symbols[np.isin(symbols["name"], list(places)) & (symbols["shndx"] != 0)]
        for name, _, _, _, value, size in hits.tolist():
            yield Symbol(places[name].rstrip(b"\0"), value, size)


def _occurrences(text: bytes, name: bytes) -> Iterator[int]:
    """Linkers store a name that is another one's end only once."""
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + 1)
