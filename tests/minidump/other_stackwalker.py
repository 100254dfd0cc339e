"""A comparison with Breakpad's minidump_stackwalk: `python -m tests.minidump.other_stackwalker FOLDER`.

FOLDER contains minidump_stackwalk, which the npm package `minidump` provides (`npm pack minidump`,
package/bin/linux-x64). Both programs walk dumps of crashed programs of each architecture and Breakpad's own example
with symbol files alone. The comparison covers the pc and every register that both know, frame by frame.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.core.making import crash
from tests.minidump.from_core import PROCESSORS, minidump, symbols
from tests.minidump.support import Document, dump
from tests.minidump.test_published import write

Frames = list[dict[str, int]]


def theirs(tool: Path, path: Path, store: Path) -> list[Frames]:
    """Return the registers of each frame of each thread, the crashed thread first."""
    done = subprocess.run([str(tool), str(path), str(store)], capture_output=True, text=True, timeout=120, check=True)
    threads: list[tuple[bool, Frames]] = []
    for line in done.stdout.splitlines():
        words = line.split()
        if line.startswith("Thread "):
            threads.append(("(crashed)" in line, []))
        elif line.startswith("Loaded modules"):
            break
        elif threads and line[:2].strip().isdigit():
            threads[-1][1].append({})
        elif threads and threads[-1][1] and len(words) >= 3 and words[1] == "=":
            frame = threads[-1][1][-1]
            frame |= {words[at]: int(words[at + 2], 16) for at in range(0, len(words) - 2, 3)}
    return [frames for _, frames in sorted(threads, key=lambda thread: not thread[0])]


def ours(document: Document) -> list[Frames]:
    return [
        [
            {name: int(value, 16) for name, value in frame["registers"].items()}
            for frame in frames
            if "registers" in frame
        ]
        for frames in (thread["frames"] for thread in document["threads"])
    ]


ALIASES = {"r11": "fp", "x29": "fp", "x30": "lr"}


def compare(name: str, tool: Path, path: Path, store: Path) -> int:
    """Return the number of frames that differ."""
    found, other = ours(dump(path, "--symbols", str(store), "--unwind", "breakpad")), theirs(tool, path, store)
    same = wrong = registers = more = 0
    for mine, their in zip(found, other, strict=True):
        more += max(len(their) - len(mine), 0)
        for depth, (a, b) in enumerate(zip(mine, their, strict=False)):
            shared = {key: ALIASES.get(key, key) if ALIASES.get(key, key) in b else key for key in a}
            thumb = {"pc": ~1}  # Breakpad keeps the Thumb bit
            differ = [key for key, alias in shared.items() if alias in b and (a[key] ^ b[alias]) & thumb.get(key, -1)]
            registers += sum(alias in b for alias in shared.values())
            if differ:
                wrong += 1
                print(f"{name}: frame {depth}: {[(key, hex(a[key]), hex(b[shared[key]])) for key in differ]}")
            same += not differ
    print(f"{name}: {same} frames and {registers} registers agree, {wrong} frames differ; it has {more} frames more")
    return wrong


def main(folder: str) -> int:
    tool = Path(folder) / "minidump_stackwalk"
    wrong = 0
    for arch in PROCESSORS:
        core = crash(arch, "core_threads.c")
        wrong += compare(arch, tool, minidump(core, paths="/gone"), symbols(core))
    with tempfile.TemporaryDirectory() as place:
        wrong += compare("minidump2.dmp", tool, *write(Path(place)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
