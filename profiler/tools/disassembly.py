"""Machine code as instructions, by objdump of binutils.

objdump gets the bytes of one function and an architecture. It never gets the object file, which may be foreign: only
pyprof's readers read that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from pyprof.collectors.linux.privileges import create_memory_file
from pyprof.errors import PyprofError
from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile
from pyprof.records import dataclass

MAX_BYTES = 1 << 18
"""Maximum size in bytes of the code of one function that is disassembled."""
_OBJDUMP_TIMEOUT_S = 20.0
_LINE = re.compile(r"\s*([0-9a-f]+):\t(.*)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction as text. Its address is that in the file (svma)."""

    address: int
    text: str


def disassemble(file: ObjectFile, start: int, end: int) -> list[Instruction]:
    """Return the instructions between two addresses in a file.

    Raises:
        PyprofError: objdump is not installed or does not support the architecture.
    """
    arch = file.arch
    data = bytes(file.at_svma(start, min(end - start, MAX_BYTES)))
    return _by_objdump(data, start, arch) if arch is not None and data else []


def _by_objdump(data: bytes, start: int, arch: Arch) -> list[Instruction]:
    program = shutil.which("objdump")
    if program is None:
        raise PyprofError("objdump is not installed", "apt-get install binutils")
    fd = create_memory_file("code")
    try:
        os.write(fd, data)
        command = [program, "-D", "-b", "binary", "-w", "--no-show-raw-insn", f"--adjust-vma={start:#x}"]
        order = "-EL" if arch.byteorder == "little" else "-EB"
        command += ["-m", arch.bfd, order, f"/proc/self/fd/{fd}"]
        done = subprocess.run(command, capture_output=True, pass_fds=[fd], timeout=_OBJDUMP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PyprofError(f"objdump cannot be run: {error}") from None
    finally:
        os.close(fd)
    lines = map(_LINE.fullmatch, done.stdout.decode(errors="replace").splitlines())
    found = [Instruction(int(line[1], 16), line[2].strip()) for line in lines if line]
    if not found:
        raise PyprofError(f"objdump does not know the code of {arch.name}", "apt-get install binutils-multiarch")
    return found
