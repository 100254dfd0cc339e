"""Tests of programs built with a newer libunwind than the system's, in a private root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.jit.programs_built import PROGRAMS
from tests.jit.test_libunwind_oracle import REGISTERED
from tests.live.support.recording import dump, running
from tests.roots import run_in

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_every_format_of_a_newer_libunwind_is_unwound(tmp_path: Path) -> None:
    """Use libunwind 1.8 of Debian unstable, whose list is found through the code of an exported function."""
    in_root = run_in("sid")
    program = tmp_path / "dyn"
    sources = [str(PROGRAMS / "dyn.c"), str(PROGRAMS / "dyn_code.S")]
    flags = ["-O1", "-g", "-fomit-frame-pointer", "-fno-stack-protector"]
    # the private root shares this folder with the host
    subprocess.run(
        [*in_root, "gcc", *flags, "-o", program, *map(shared(tmp_path), sources), "-lunwind"],
        check=True,
        timeout=120,
    )
    with running(*in_root, program, "spin") as process:
        (thread,) = dump(process.pid)["threads"]
    assert thread["end"] == "root"
    made_code = [frame["function"] for frame in thread["frames"] if frame["module"] == "[jit] libunwind"]
    assert made_code == REGISTERED


def shared(folder: Path):  # type: ignore[no-untyped-def]
    """Return a function that copies a file to where the root sees it."""

    def copy(path: str) -> str:
        target = folder / Path(path).name
        target.write_bytes(Path(path).read_bytes())
        return str(target)

    return copy
