"""A comparison of written symbol files with the PyPI package `symbolic`, for any ELF file.

    python -m tests.breakpad.other_reader ELF...

It compares functions and lines at addresses of .text, inlined functions first. It prints how many agree and exits with
status 1 if any differ.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames
from pyprof.tools.breakpad_writer import SymbolWriter

STEPS = 20_000
"""Maximum number of addresses compared in one file."""


def compare(path: str) -> tuple[int, int]:
    """Return how many addresses agree and how many differ."""
    import symbolic

    writer, out = SymbolWriter(path), io.BytesIO()
    writer.write(out)
    mine = SymbolFileNames(SymbolFile(BytesSource(out.getvalue()), path, Diagnostics()))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "written.sym"
        file.write_bytes(out.getvalue())
        theirs = next(symbolic.Archive.open(str(file)).iter_objects())
        cache = theirs.make_symcache()
    assert theirs.debug_id.replace("-", "").upper() == writer.id[:32]
    assert (theirs.code_id or "") == writer.file.build_id
    text = writer.file.sections[".text"]
    start = text.addr - writer.file.min_vaddr
    same = differ = 0
    for rel in range(start, start + text.size, max(1, text.size // STEPS)):
        found = mine.find(rel)
        if found is None or not found.places or not all(place.line for place in found.places):
            continue
        known = [(place.name, place.file, place.line) for place in found.places]
        read = [(place.symbol, place.full_path, place.line) for place in cache.lookup(rel)]
        if known == read:
            same += 1
        else:
            differ += 1
            if differ <= 3:
                print(f"{rel:#x}\n  ours   {known}\n  theirs {read}")
    print(f"{path}: {same} addresses agree, {differ} differ")
    return same, differ


if __name__ == "__main__":
    sys.exit(max(compare(path)[1] > 0 for path in sys.argv[1:]))
