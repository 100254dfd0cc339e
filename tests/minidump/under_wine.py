"""A comparison with Wine's unwinder: `python -m tests.minidump.under_wine [COUNT]`.

A C++ program built by MinGW writes minidumps of a busy thread, which throws exceptions, at random moments. Next to each
it prints the pcs that RtlVirtualUnwind finds. pyprof walks the dumps by the modules' function tables.
Needs wine64 and g++-mingw-w64-x86-64-win32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.minidump.support import dump
from tests.support import PROGRAMS


def compare(folder: Path, count: int) -> None:
    """Print the number of equal stacks, and each stack that differs."""
    program = folder / "dumps.exe"
    flags = ("-O2", "-g", "-static")
    source = str(PROGRAMS / "windows_dumps.cpp")
    subprocess.run(["x86_64-w64-mingw32-g++", *flags, source, "-o", str(program), "-ldbghelp"], check=True)
    environment = {**os.environ, "WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all"}
    done = subprocess.run(
        ["wine", str(program), str(count)], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    same = frames = 0
    for line in done.stdout.splitlines():
        kind, number, tid, *theirs = line.split()
        assert kind == "dump", line
        path = folder / f"dump-{number}.dmp"
        document = dump(path, "--exe", str(program), "--sysroot", str(folder / "prefix"))
        thread = next(thread for thread in document["threads"] if thread["tid"] == int(tid))
        ours = [int(frame["pc"], 16) for frame in thread["frames"] if not frame["inlined"]]
        expected = [int(pc, 16) for pc in theirs]
        same += ours == expected
        frames += len(expected)
        if ours != expected:
            print(f"dump {number}: {list(map(hex, ours))} ({thread['end']}), Wine: {list(map(hex, expected))}")
    print(f"{same} of {count} stacks equal, {frames} frames")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pyprof-wine-") as made:
        compare(Path(made), int(sys.argv[1]) if len(sys.argv) > 1 else 20)
