"""`python -m bench.decode [FILE ...]`: measure the cost of reading the unwind tables of a file.

For each source of unwind rules it measures four things: opening it, the first 100 functions (spread over the file,
nothing cached), one function with warm caches, and the whole table. In addition it measures how long readelf takes to
print the same table, if it can.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pyprof.errors import FormatError
from pyprof.model.arch import find_arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.module_unwind_sources import READERS

FILES = (
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libpython3*.so.1.0",
    "/usr/bin/python3.??",
    "/usr/lib/x86_64-linux-gnu/libLLVM*.so*",
    "/usr/lib/llvm-*/lib/libLLVM*.so.1",
    "/usr/bin/node",
    "/usr/arm-linux-gnueabihf/lib/libc.so.6",
    "/usr/arm-linux-gnueabihf/lib/libstdc++.so.6",
)
READELF = {"eh_frame": "--debug-dump=frames-interp", "debug_frame": "--debug-dump=frames-interp", "exidx": "-u"}
FUNCTIONS = 4000


def sframe_program(folder: Path) -> str | None:
    """Build a library of some thousand functions with SFrame by the host's assembler. Return None if the assembler
    cannot.
    """
    if not shutil.which("gcc"):
        return None
    lines = ["extern int sink(int, ...);"]
    for n in range(FUNCTIONS):
        body = f"volatile int a[{8 + n % 50}]; a[x & 7] = x; if (x > {n}) return f{max(n - 1, 0)}(a[3]) + 1;"
        lines.append(f"int f{n}(int x) {{ {body} return sink(x, a[1]) + sink(a[2]); }}")
    (folder / "many.c").write_text("\n".join(lines))
    command = ["gcc", "-O2", "-shared", "-fPIC", "-Wa,--gsframe", "-o", "many.so", "many.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    return str(folder / "many.so") if done.returncode == 0 else None


def measure(table: Table, path: str) -> None:
    elf = ElfFile.open(path)
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    if arch is None:
        return
    for name, reader in READERS.items():
        start = time.perf_counter()
        source = reader(elf, arch, Diagnostics())
        if source is None:
            continue
        starts = source.extents()[0].tolist()
        opened = time.perf_counter() - start
        source = reader(elf, arch, Diagnostics())  # read again: extents() may have built what the first query needs
        if source is None or not starts:
            continue
        probes = starts[:: max(len(starts) // 100, 1)][:100]
        first, warm = ask(source.function_at, probes), ask(source.function_at, probes)
        start = time.perf_counter()
        count = sum(1 for _ in source.functions())
        whole = time.perf_counter() - start
        table.add_row(
            f"{Path(path).name} ({os.stat(path).st_size >> 20} MB)",
            name,
            f"{count:,}",
            f"{1e3 * opened:.1f}",
            f"{1e6 * first / len(probes):.0f}",
            f"{1e6 * warm / len(probes):.0f}",
            f"{whole:.2f}",
            readelf_seconds(path, name),
        )


def ask(function_at: object, probes: list[int]) -> float:
    start = time.perf_counter()
    for svma in probes:
        try:
            function_at(svma)  # type: ignore[operator]
        except FormatError:
            continue
    return time.perf_counter() - start


def readelf_seconds(path: str, source: str) -> str:
    if source not in READELF or not shutil.which("readelf"):
        return "-"
    start = time.perf_counter()
    command = ["readelf", "-W", READELF[source], path]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600, check=False)
    return f"{time.perf_counter() - start:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__)
    parser.add_argument("files", nargs="*", help="default: libc, libpython and the largest libraries that are here")
    arguments = parser.parse_args()
    table = Table(title="reading unwind tables")
    for heading in ("file", "source", "functions", "open ms", "first us", "warm us", "whole s", "readelf s"):
        table.add_column(heading, justify="left" if heading in ("file", "source") else "right")
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.files or [os.path.realpath(p) for pattern in FILES for p in sorted(glob.glob(pattern))]
        built = None if arguments.files else sframe_program(Path(folder))
        for path in dict.fromkeys([*paths, *([built] if built else [])]):
            measure(table, path)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
