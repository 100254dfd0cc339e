"""`make test-system`: run pyprof under other kernels in Debian guests.

qemu boots the kernels of three Debian releases. The root file system is in memory and contains Debian packages, pyprof
with its dependencies as wheels, and compiled test programs. In the guest, guest.py runs pyprof natively and prints one
line for each check. The output is stored in build/system/MACHINE/console-SUITE.log.

Processors are emulated instruction by instruction: all checks take five minutes for each kernel. AArch64 therefore runs
all checks under one kernel, and under the others those that depend on the kernel. The first run downloads 120 MB for
each machine and 70 MB for each kernel. It is not part of `make test`.
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
SIGNED = "max,pauth-impdef=on"  # pointer authentication with an algorithm that is fast to emulate
# one thread for both processors: with one thread each, qemu runs code that another processor modifies
QUICK = ("-cpu", "max", "-accel", "tcg,thread=single")
MACHINES = {
    "x86_64": Machine("x86_64", "amd64", ("qemu-system-x86_64", "-M", "q35", *QUICK), "ttyS0"),
    "aarch64": Machine("aarch64", "arm64", ("qemu-system-aarch64", "-M", "virt", "-cpu", SIGNED), "ttyAMA0"),
}
SUITES = ("bookworm", "trixie", "sid")
OF_KERNEL = "machine_and_doctor,kernel"
MEMORY = "3G"


def boot(machine: Machine, kernel: Path, initrd: Path, console: Path, limit_s: float) -> None:
    """Run the guest until it powers off, with its console on standard output and in the file."""
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
    """Return True if all checks ran and passed under one kernel."""
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
