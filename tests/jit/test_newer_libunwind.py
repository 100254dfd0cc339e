"""Programs built against a newer libunwind than this system has, in a private root: headers, library, list."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.jit.programs_built import PROGRAMS
from tests.jit.test_interpreters import DEBROOT
from tests.jit.test_libunwind_oracle import REGISTERED
from tests.live.support.recording import dump, running
from tests.support import missing
from tests.unwind.sframe.roots import ROOTS, may_sudo

ROOT = ROOTS / "sid"


def test_every_format_of_a_newer_libunwind_is_unwound(tmp_path: Path) -> None:
    """Debian unstable's 1.8: the list is found by the code of the function that its stripped library exports."""
    made = (ROOT / ".debroot" / "done").exists()
    if os.geteuid() != 0 and not may_sudo("sudo"):
        missing("needs root: a newer libunwind runs in a private Debian root")
    if not os.environ.get("CI") and not made:
        missing("needs a private root of Debian unstable: tests/unwind/sframe/roots.sh makes it")
    subprocess.run(
        [DEBROOT, "sid", ROOT, "gcc", "libc6-dev", "libunwind-dev"], check=True, timeout=280, capture_output=True
    )
    program = tmp_path / "dyn"
    sources = [str(PROGRAMS / "dyn.c"), str(PROGRAMS / "dyn_code.S")]
    flags = ["-O1", "-g", "-fomit-frame-pointer", "-fno-stack-protector"]
    # what is built must lie in a folder that the root shares with us
    subprocess.run(
        [DEBROOT, "run", ROOT, "gcc", *flags, "-o", program, *map(shared(tmp_path), sources), "-lunwind"],
        check=True,
        timeout=120,
    )
    with running(DEBROOT, "run", ROOT, program, "spin") as process:
        (thread,) = dump(process.pid)["threads"]
    assert thread["end"] == "root"
    made_code = [frame["function"] for frame in thread["frames"] if frame["module"] == "[jit] libunwind"]
    assert made_code == REGISTERED


def shared(folder: Path):  # type: ignore[no-untyped-def]
    """Puts a copy of a file where the root sees it."""

    def copy(path: str) -> str:
        target = folder / Path(path).name
        target.write_bytes(Path(path).read_bytes())
        return str(target)

    return copy
