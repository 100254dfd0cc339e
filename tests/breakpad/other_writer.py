"""A comparison of written symbol files with dump_syms: python -m tests.breakpad.other_writer FOLDER ELF...

FOLDER contains dump_syms, which the npm package `minidump` provides (`npm pack minidump`, package/bin/linux-x64). The
comparison covers identifiers, FUNC records, and STACK CFI as rows. For a row with an expression, and for that of an
outermost frame, dump_syms writes the remainder and pyprof nothing: such rows are counted separately.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from pyprof.tools.breakpad_writer import SymbolWriter
from pyprof.tools.unwind_table_inspection import Inspection, SymbolInspection, find_differences


def functions(path: Path) -> set[tuple[str, ...]]:
    """Return (address, size) of the FUNC records."""
    lines = (line.split() for line in path.read_text(errors="replace").splitlines() if line.startswith("FUNC "))
    return {tuple(words[2:4] if words[1] == "m" else words[1:3]) for words in lines}


def compare(tool: Path, elf: str, folder: Path) -> int:
    """Return the number of differences without a known reason."""
    ours, theirs = folder / "ours.sym", folder / "theirs.sym"
    with open(ours, "wb") as out:
        SymbolWriter(elf).write(out)
    done = subprocess.run([str(tool), elf], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600, check=True)
    theirs.write_bytes(done.stdout)
    mine, their = SymbolInspection(str(ours)), SymbolInspection(str(theirs))
    tables = Inspection(elf)
    base = tables.object.min_vaddr
    wrong = int(mine.file.module.id != their.file.module.id)
    reasons = 0
    for found in find_differences((their, "breakpad"), (mine, "breakpad")):
        said = [row.words for row in tables.read_rows(["eh_frame"], [(base + found.start, base + found.start + 1)])]
        if found.second is None and any(not words.comparable or words.outermost for words in said):
            reasons += 1
            continue
        wrong += 1
        print(f"{elf}: {found.start:#x}..{found.end:#x}: theirs {found.first}, ours {found.second}")
    missing = functions(theirs) - functions(ours)
    print(f"{elf}: id {mine.file.module.id}, {len(functions(theirs))} functions, {len(missing)} missing")
    print(f"  STACK CFI: {wrong} differ, {reasons} stretches that cannot be said")
    return wrong + len(missing)


def main(folder: str, *files: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        return max(compare(Path(folder) / "dump_syms", file, Path(place)) > 0 for file in files)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
