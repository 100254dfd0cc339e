"""Program counters of all threads in a core, without inlined functions, from gdb and from eu-stack."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.core.making import Core
from tests.support import need

GDB = """\
set pagination off
set print frame-arguments none
set print entry-values no
set backtrace past-main on
set sysroot {sysroot}
file {program}
core-file {core}
python
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, pcs = gdb.newest_frame(), []
    try:
        while frame is not None and len(pcs) < 200:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                pcs.append(hex(frame.pc()))
            frame = frame.older()
    except gdb.error as error:
        pass
    print("THREAD", thread.ptid[1], *pcs)
end
"""


def gdb_pcs(core: Core, folder: Path) -> dict[int, list[int]]:
    """Return gdb's program counters of each thread from leaf to root."""
    script = folder / "script.gdb"
    script.write_text(GDB.format(sysroot=core.sysroot or "/", program=core.program, core=core.path))
    done = subprocess.run(
        [need("gdb-multiarch"), "-nx", "-batch", "-x", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("THREAD "):
            _, tid, *pcs = line.split()
            found[int(tid)] = [int(pc, 16) for pc in pcs]
    assert found, done.stdout + done.stderr
    return found


def eu_stack_pcs(core: Core) -> dict[int, list[int]]:
    """Return eu-stack's program counters of each thread from leaf to root."""
    done = subprocess.run(
        [need("eu-stack"), "--core", str(core.path), "-e", str(core.program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[int, list[int]] = {}
    pcs: list[int] = []
    for line in done.stdout.splitlines():
        if match := re.fullmatch(r"TID (\d+):", line):
            pcs = found.setdefault(int(match[1]), [])
        elif match := re.match(r"#\d+ +0x([0-9a-f]+)", line):
            pcs.append(int(match[1], 16))
    assert found, done.stdout + done.stderr
    return found
