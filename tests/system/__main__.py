"""pyprof under other kernels, in Debians of its own: `make test-system`.

qemu boots Debian's kernels, those of three releases, on a root file system that lies in memory, made of Debian's
packages, of pyprof with its dependencies as wheels, and of programs that are compiled here. Inside, guest.py runs
pyprof natively on processes of that system and prints one line a check. What it printed is kept in
build/system/MACHINE/console-SUITE.log.

Processors are emulated instruction by instruction: all checks take five minutes a kernel. So under AArch64 they are
made under one, and the others are asked for what depends on the kernel.
Downloads 120 MB a machine and 70 MB a kernel the first time. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.support import need
from tests.system.image import Machine, make_image

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "system"
SIGNED = "max,pauth-impdef=on"  # signed return addresses, by a signature that is quick to emulate
# one thread for both processors: where each has its own, qemu runs code that another processor is changing
QUICK = ("-cpu", "max", "-accel", "tcg,thread=single")
MACHINES = {
    "x86_64": Machine("x86_64", "amd64", ("qemu-system-x86_64", "-M", "q35", *QUICK), "ttyS0"),
    "aarch64": Machine("aarch64", "arm64", ("qemu-system-aarch64", "-M", "virt", "-cpu", SIGNED), "ttyAMA0"),
}
SUITES = ("bookworm", "trixie", "sid")
OF_KERNEL = "machine_and_doctor,kernel"
MEMORY = "3G"


def boot(machine: Machine, kernel: Path, initrd: Path, console: Path, limit_s: float) -> None:
    """Run the guest until it powers off; its console goes to the file and to standard output."""
    command = [need(machine.qemu[0]), *machine.qemu[1:], "-smp", "2", "-m", MEMORY, "-nographic"]
    command += ["-no-reboot", "-net", "none", "-kernel", str(kernel), "-initrd", str(initrd)]
    command += ["-append", f"console={machine.console} quiet panic=-1 rdinit=/usr/bin/python3 -- -u /opt/guest.py"]
    deadline = time.monotonic() + limit_s
    with (
        console.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as guest,
    ):
        assert guest.stdout is not None
        try:
            for line in guest.stdout:
                log.write(line)
                log.flush()
                sys.stdout.write(line.decode("utf-8", "replace"))
                sys.stdout.flush()
                if time.monotonic() > deadline:
                    break
        finally:
            guest.kill()


def passes(machine: Machine, suite: str, only: str, limit_s: float) -> bool:
    """Under one kernel: were all checks done, and did each pass?"""
    build = BUILD / machine.name
    build.mkdir(parents=True, exist_ok=True)
    kernel, initrd = make_image(ROOT, build, machine, suite, only)
    console = build / f"console-{suite}.log"
    boot(machine, kernel, initrd, console, limit_s)
    said = console.read_text(errors="replace")
    failed, passed = said.count("\nFAILED "), said.count("\npassed ")
    done = "all checks done" in said
    print(f"{machine.name}, kernel of {suite}: {passed} passed, {failed} failed" + ("" if done else "; it did not end"))
    return done and passed > 0 and not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system", description=__doc__)
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="stop a guest after so long")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="only this one")
    parser.add_argument("--kernel", choices=SUITES, action="append", help="only this one")
    parser.add_argument("--only", default="", metavar="WORD,…", help="only checks with one of these words")
    arguments = parser.parse_args()
    systems = [(name, suite) for name in arguments.machine or MACHINES for suite in arguments.kernel or SUITES]
    found = []
    for name, suite in systems:
        emulated = name == "aarch64" and suite != SUITES[0]
        found.append(passes(MACHINES[name], suite, arguments.only or OF_KERNEL * emulated, arguments.limit))
    return int(not all(found))


if __name__ == "__main__":
    raise SystemExit(main())
