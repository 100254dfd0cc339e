"""`python -m bench.breakpad [MB]`: measure how fast a Breakpad symbol file is opened and queried, and its memory.

The file is synthetic: functions of 256 bytes with 32 lines, one inlined call and four STACK CFI records each. That is
about the mix of a large C++ library.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO

from pyprof.model.arch import X86_64
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi

FILES, ORIGINS, SIZE = 20_000, 100_000, 256
LOOKUPS = 5_000


def make(out: IO[bytes], megabytes: int) -> int:
    """Write a synthetic Breakpad symbol file of the given size in MiB, and return its number of functions."""
    out.write(b"MODULE Linux x86_64 4FFB3F8C0A4D4EF6B2A9E0C35E4F1A6B0 made\n")
    out.writelines(b"FILE %d /build/source/component/path/file%d.cc\n" % (at, at) for at in range(FILES))
    origins = (
        b"INLINE_ORIGIN %d std::vector<ns::T%d>::push_back(ns::T%d const&)\n" % (at, at, at) for at in range(ORIGINS)
    )
    out.writelines(origins)
    number = 0
    while out.tell() < megabytes << 20:
        at = SIZE * (number + 16)
        out.write(
            b"FUNC %x %x 0 ns::Component%d::method_%d(std::string const&, int)\n" % (at, SIZE, number % 977, number)
        )
        out.write(b"INLINE 0 %d %d %d %x 20\n" % (number % 500, number % FILES, number % ORIGINS, at + 16))
        out.writelines(b"%x 8 %d %d\n" % (at + step, 100 + step, (number + step) % FILES) for step in range(0, SIZE, 8))
        out.write(b"STACK CFI INIT %x %x .cfa: $rsp 8 + .ra: .cfa -8 + ^\n" % (at, SIZE))
        out.write(b"STACK CFI %x .cfa: $rsp 16 + $rbp: .cfa -16 + ^\n" % (at + 1))
        out.write(b"STACK CFI %x .cfa: $rbp 16 +\n" % (at + 4))
        out.write(b"STACK CFI %x .cfa: $rsp 8 +\n" % (at + SIZE - 2))
        number += 1
    out.flush()
    return number


def rate(ask: Callable[[int], object], functions: int) -> float:
    """Return the number of queries per second that `ask` answers. Each query is about an address in another
    function.
    """
    places = [SIZE * (16 + at) + 20 for at in random.Random(1).sample(range(functions), min(LOOKUPS, functions))]
    begin = time.perf_counter()
    for place in places:
        assert ask(place) is not None
    return len(places) / (time.perf_counter() - begin)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.NamedTemporaryFile() as file:
        functions = make(file, megabytes)
        before = resource.getrusage(resource.RUSAGE_SELF)
        begin = time.perf_counter()
        symbols = SymbolFile.open(file.name, Diagnostics())
        lines = symbols.index.lines
        wall = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_SELF)
        print(f"{megabytes} MB, {lines:,} lines, {functions:,} functions")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"index: {wall:.1f} s ({megabytes / wall:.0f} MB/s), {cpu:.1f} s of CPU")
        print(f"memory: {after.ru_maxrss >> 10} MB at most, {before.ru_maxrss >> 10} MB before")
        rows = StackCfi(lambda: symbols, 0, X86_64, Diagnostics())
        names = SymbolFileNames(symbols)
        print(f"rows of a function: {rate(rows.function_at, functions):,.0f} a second")
        print(f"name, lines and inlined calls: {rate(names.find, functions):,.0f} a second")


if __name__ == "__main__":
    main()
