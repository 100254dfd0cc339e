"""unit_filter.py UNIT COMMAND...: runs a command with the capabilities and system calls of a systemd unit."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from pyprof.collectors.linux.process_sandbox import confine_process
from pyprof.model.arch.syscalls import call_names

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def settings(unit: Path, name: str) -> list[str]:
    """Return the words of a setting of a unit."""
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith(f"{name}=")]
    return line.partition("=")[2].split()


def allowed(words: list[str]) -> set[str]:
    """Return the names of the system calls that a filter allows. A word that begins with @ is a set of them."""
    names: set[str] = set()
    for word in words:
        if word.startswith("@"):
            command = ["systemd-analyze", "syscall-filter", word]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[1:]
            names |= allowed([line.strip() for line in listed if line.strip() and not line.strip().startswith("#")])
        else:
            names.add(word)
    return names


def main() -> None:
    unit, command = Path(sys.argv[1]), sys.argv[2:]
    names = allowed([*settings(unit, "SystemCallFilter"), "@default"])  # systemd adds @default
    names.add("timerfd")  # as python-ptrace calls timerfd_create
    numbers = [number for number, name in call_names(os.uname().machine).items() if name in names]
    code = [(LOAD, 0, 0, 0)]
    for number in numbers:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, REFUSE))
    capabilities = [
        "-all",
        *(f"+{name.removeprefix('CAP_').lower()}" for name in settings(unit, "CapabilityBoundingSet")),
    ]
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    confine_process(b"".join(struct.pack("=HBBI", *each) for each in code))
    os.execv(setpriv, [setpriv, f"--bounding-set={','.join(capabilities)}", *command])


if __name__ == "__main__":
    main()
