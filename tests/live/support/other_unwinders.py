"""Return addresses of all threads from leaf to root, without inline frames, according to gdb and eu-stack."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support import need

_LIST_FRAMES = """
python
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("thread", thread.ptid[1])
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("frame", hex(frame.pc()))
        try:
            frame = frame.older()
        except gdb.error:
            frame = None
end
"""

Stacks = dict[int, list[int]]
"""Program counters by thread id."""


def gdb_stacks(pid: int, folder: Path) -> Stacks:
    script = folder / "frames.gdb"
    script.write_text(_LIST_FRAMES)
    settings = ["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]
    command = [need("gdb"), "-nx", "-batch", "-p", str(pid), *settings, "-x", str(script)]
    return _parse(_output(command), r"thread (\d+)", r"frame (0x[0-9a-f]+)")


def eu_stacks(pid: int) -> Stacks:
    return _parse(_output([need("eu-stack"), "-n", "0", "-p", str(pid)]), r"TID (\d+):", r"#\d+\s+(0x[0-9a-f]+)")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


def _parse(text: str, thread: str, frame: str) -> Stacks:
    stacks: Stacks = {}
    tid = 0
    for line in text.splitlines():
        if match := re.match(thread, line):
            tid = int(match[1])
            stacks[tid] = []
        elif tid and (match := re.match(frame, line)):
            stacks[tid].append(int(match[1], 16))
    return stacks
