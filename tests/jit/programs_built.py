"""Builds of the test programs that register code at run time."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import build, missing, need

PROGRAMS = Path(__file__).parent / "programs"
LIBUNWIND_H = Path("/usr/include/x86_64-linux-gnu/libunwind.h")


def dyn(folder: Path, kind: str) -> Path:
    """Build dyn.c.

    Args:
        folder: Folder of the program.
        kind: "offset" or "plain" for the layout of the structures, "static", or "stripped" (static, with its symbols in
            a separate file).
    """
    if not LIBUNWIND_H.exists():
        missing("needs libunwind's headers: apt-get install libunwind-dev")
    flags = ["-O1", "-g", "-fomit-frame-pointer", "-fno-stack-protector", str(PROGRAMS / "dyn_code.S")]
    flags += ["-DPLAIN"] if kind == "plain" else []
    static = kind in ("static", "stripped")
    flags += ["-static"] if static else []
    output = folder / f"dyn_{kind}"
    # a static link depends on the order of libraries
    build(PROGRAMS / "dyn.c", output, *flags, "-lunwind", *(["-llzma"] if static else []))
    if kind == "stripped":
        debug = folder / "dyn_stripped.debug"
        objcopy = need("objcopy")
        subprocess.run([objcopy, "--only-keep-debug", output, debug], check=True, timeout=60)
        subprocess.run([need("strip"), output], check=True, timeout=60)
        subprocess.run([objcopy, f"--add-gnu-debuglink={debug}", output], check=True, timeout=60)
    return output
