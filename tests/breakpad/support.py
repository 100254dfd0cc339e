"""Construction of symbol files from text."""

from __future__ import annotations

from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource
from pyprof.problem_counters import Diagnostics

HEAD = "MODULE Linux x86_64 4FFB3F8C0A4D4EF6B2A9E0C35E4F1A6B0 a program\n"


def symbol_file(text: str | bytes, diagnostics: Diagnostics | None = None) -> SymbolFile:
    data = text if isinstance(text, bytes) else (HEAD + text).encode()
    return SymbolFile(BytesSource(data), "made.sym", diagnostics or Diagnostics())
